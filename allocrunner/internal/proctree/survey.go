package proctree

import (
	"fmt"
	"path/filepath"

	"taskapi/internal/proc"
)

// View is what a process beside the supervisor knows of its trees, by which it can look at them.
type View struct {
	Supervisor int    // the process number of the trees' parent
	Cgroup     string // the directory of the tasks' cgroups (Trees.CgroupDir), or empty
	Roots      []ViewRoot
}

// ViewRoot is the root process of a tree, which runs.
type ViewRoot struct {
	Task   string
	PID    int
	Start  uint64 // clock ticks after boot; 0 when unknown
	Fenced bool   // it has a cgroup of its own
	Marker string // as of Trees.Task
}

// CgroupOf returns the directory of a task's own cgroup, empty when it has none.
func (v View) CgroupOf(root ViewRoot) string {
	if !root.Fenced || v.Cgroup == "" {
		return ""
	}
	return filepath.Join(v.Cgroup, taskPrefix+root.Task)
}

// Survey returns the living processes of each tree by its task, those of programs beside the root process included. A tree whose root process has
// ended by now is not in the answer. A process that has got the number of another during the look is left out.
//
// A tree with a cgroup is what is in it. Without one, it is the descendants of its root process, and of those processes that the supervisor
// has inherited which are known by their session, by the marker, or by being there while no other tree is.
func Survey(v View) (map[string][]proc.Usage, error) {
	trees := make(map[string][]proc.Usage, len(v.Roots))
	elsewhere := map[int]bool{} // in trees with a cgroup
	var open []ViewRoot
	for _, root := range v.Roots {
		dir := v.CgroupOf(root)
		if dir == "" {
			open = append(open, root)
			continue
		}
		now := proc.UptimeTicks()
		for _, pid := range PIDsBelow(dir) {
			elsewhere[pid] = true
			if u, err := proc.ReadUsage(pid); err == nil && !u.Dead && u.Start <= now {
				trees[root.Task] = append(trees[root.Task], u)
			}
		}
	}
	if len(open) == 0 {
		return trees, nil
	}
	all, err := proc.AllUsage()
	if err != nil {
		return nil, fmt.Errorf("read /proc: %w", err)
	}
	owner := v.owners(open, elsewhere, all)
	for pid, u := range all {
		if task, ok := ownerOf(pid, owner, all); ok && !u.Dead {
			trees[task] = append(trees[task], u)
		}
	}
	return trees, nil
}

// owners returns the tasks of the processes by whose descent trees without a cgroup are known.
func (v View) owners(open []ViewRoot, elsewhere map[int]bool, all map[int]proc.Usage) map[int]string {
	owner := map[int]string{}
	isRoot := map[int]bool{}
	for _, root := range v.Roots {
		isRoot[root.PID] = true
	}
	for _, root := range open {
		if u, ok := all[root.PID]; ok && (root.Start == 0 || u.Start == root.Start) {
			owner[root.PID] = root.Task
		}
	}
	for pid, u := range all {
		if u.Parent != v.Supervisor || isRoot[pid] || elsewhere[pid] {
			continue
		}
		for _, root := range open {
			if _, runs := owner[root.PID]; runs && (u.Session == root.PID || len(v.Roots) == 1 || proc.HasEnv(pid, root.Marker)) {
				owner[pid] = root.Task
				break
			}
		}
	}
	return owner
}

// ownerOf returns the task of the process, or of its nearest ancestor that has one.
func ownerOf(pid int, owner map[int]string, all map[int]proc.Usage) (string, bool) {
	for range len(all) { // a bound, should numbers have been used again during the look
		if task, ok := owner[pid]; ok {
			return task, true
		}
		u, ok := all[pid]
		if !ok || u.Parent == 0 {
			return "", false
		}
		pid = u.Parent
	}
	return "", false
}

// PIDsBelow returns the numbers of the processes in a cgroup and in those below it; none when it is gone.
func PIDsBelow(dir string) []int {
	var pids []int
	for _, below := range cgroupsBelow(dir) {
		pids = append(pids, (&cgroup{dir: below}).pids()...)
	}
	return pids
}
