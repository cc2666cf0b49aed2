package allocrunner

import (
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocfs"
)

// Files returns the files of the allocation.
func (r *Runner) Files(reader *interfaces.Reader) interfaces.Files { return r.files.As(reader) }

// Files returns the files of an allocation, whether it runs or has ended, as this program's user may read them: from
// its directory, without its taskapi.
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
