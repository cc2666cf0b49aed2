package proctree

import (
	"fmt"
	"path/filepath"

	"taskapi/internal/proc"
)

// View is the data that another process than the supervisor needs to look at the trees.
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

// Survey returns the living processes of each tree by its task, exec children included. A tree whose root process has
// ended by now is left out, and so is a process that has got the number of another one during the look.
//
// If a tree has a cgroup, its processes are those in the cgroup. Otherwise it is the descendants of its root process,
// and those of processes that the supervisor has inherited and that are known by their session, by the marker, or
// because no other tree is there.
func Survey(v View) (map[string][]proc.Stat, error) {
	trees := make(map[string][]proc.Stat, len(v.Roots))
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
			if u, err := proc.Read(pid); err == nil && !u.Dead && u.Start <= now {
				trees[root.Task] = append(trees[root.Task], u)
			}
		}
	}
	if len(open) == 0 {
		return trees, nil
	}
	all, err := proc.All()
	if err != nil {
		return nil, fmt.Errorf("read /proc: %w", err)
	}
	owner := v.owners(open, elsewhere, all)
	for pid, u := range all {
		if task, ok := nearest(pid, owner, all); ok && !u.Dead {
			trees[task] = append(trees[task], u)
		}
	}
	return trees, nil
}

// owners returns the tasks of the processes whose descendants are the trees without a cgroup.
func (v View) owners(open []ViewRoot, elsewhere map[int]bool, all map[int]proc.Stat) map[int]string {
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
			if _, runs := owner[root.PID]; runs &&
				(u.Session == root.PID || len(v.Roots) == 1 || proc.HasEnv(pid, root.Marker)) {
				owner[pid] = root.Task
				break
			}
		}
	}
	return owner
}

// nearest returns a map's value for a process, or for its nearest ancestor that is in the map.
func nearest[T any](pid int, in map[int]T, all map[int]proc.Stat) (value T, ok bool) {
	for range len(all) { // a bound, in case numbers were used again during the look
		if value, ok := in[pid]; ok {
			return value, true
		}
		s, ok := all[pid]
		if !ok || s.Parent == 0 {
			break
		}
		pid = s.Parent
	}
	return value, false
}

// PIDsBelow returns the numbers of the processes in a cgroup and in the cgroups below it. A cgroup that is gone has
// none.
func PIDsBelow(dir string) []int {
	var pids []int
	for _, below := range cgroupsBelow(dir) {
		pids = append(pids, cgroup(below).pids()...)
	}
	return pids
}
