package allocrunner

import (
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocfs"
)

// Files returns the files of the allocation.
func (r *Runner) Files(reader *interfaces.Reader) interfaces.Files { return r.files.As(reader) }

// Files returns the files of an allocation that runs or has ended. It reads them from the allocation's directory, with
// the rights of this program's user; no taskapi has to run.
func Files(dir string, group *api.TaskGroup) interfaces.Files {
	return allocfs.New(dir, taskNames(group)).As(nil)
}

func taskNames(group *api.TaskGroup) []string {
	names := make([]string, len(group.Tasks))
	for i, t := range group.Tasks {
		names[i] = t.Name
	}
	return names
}
