package interfaces

import (
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/ptr"
)

// MostOfJob is more allocations of a job than a machine runs.
const MostOfJob = 1000

// CountOf returns how many allocations of a group run on a machine.
func CountOf(job *api.Job, tg *api.TaskGroup) int {
	if tg.Count == nil || ptr.Deref(job.Type) == api.JobTypeSystem || ptr.Deref(job.Type) == api.JobTypeSysbatch {
		return 1
	}
	return max(0, *tg.Count)
}

// CheckCounts returns an error for a job that asks for more allocations than a machine runs, or for a static port that
// several of them would have.
func CheckCounts(job *api.Job, groups []*api.TaskGroup) error {
	all, static := 0, map[int]string{} // the group that has the port
	for _, g := range groups {
		name, count := ptr.Deref(g.Name), CountOf(job, g)
		if count > MostOfJob-all {
			return fmt.Errorf("group %q: count: the job asks for more than %d allocations", name, MostOfJob)
		}
		all += count
		for _, p := range Ports(Networks(g)) {
			other, taken := static[p.Value]
			switch {
			case p.Value == 0 || count == 0:
			case count > 1:
				return fmt.Errorf("group %q: port %q: only one of its %d allocations can have the static port %d; leave "+
					"out static, and each gets a port of its own", name, p.Label, count, p.Value)
			case taken:
				return fmt.Errorf("group %q: port %q: group %q has the static port %d, too; give each its own", name,
					p.Label, other, p.Value)
			default:
				static[p.Value] = name
			}
		}
	}
	return nil
}
