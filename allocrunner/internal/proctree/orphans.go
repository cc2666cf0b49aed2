package proctree

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"taskapi/internal/proc"
	"taskapi/internal/wake"
)

// Orphan is a process that outlived its supervisor.
type Orphan struct {
	PID  int
	Task string // by its cgroup, its NOMAD_TASK_NAME or its session; empty when unknown
}

// Hints describe the trees of a supervisor that was killed.
type Hints struct {
	Cgroup   string        // the directory of the tasks' cgroups (CgroupDir), or empty
	Name     string        // Config's, by which the cgroup is found as well
	NoCgroup bool          // Config's
	Roots    []RootProcess // the root processes that had not ended

	// Marker is an environment entry that all processes were started with, such as "NOMAD_ALLOC_DIR=" and the
	// allocation's directory, or empty. It counts for Unfenced tasks, which had no cgroup. If there is no cgroup and
	// none can be made, it counts for all tasks. It counts only for processes of this program's user and of Users.
	Marker   string
	Unfenced []string
	Users    []uint32
}

// RootProcess is the root process of such a tree.
type RootProcess struct {
	proc.Identity
	Task  string
	Alive proc.Moment // when it was last known to be alive; zero if only its start is known
}

// KillOrphans kills the processes that a killed supervisor has left: all in its cgroup, the root processes with all of
// their sessions, and every process with the marker if the marker counts. It spares this program and its ancestors, and
// processes with the marker in a user's terminal. When they are gone, it returns the killed processes. Without a
// cgroup, it does not find a process that has left its session and was started without the marker. If some do not end,
// the error is ctx's.
func KillOrphans(ctx context.Context, hints Hints) ([]Orphan, error) {
	s := newSearch(hints)
	for pauses := (wake.Backoff{First: firstPause, Last: longestPause}); ; {
		alive, err := s.look() // finds their tasks before any is killed: a dying process has no environment
		if err != nil {
			return s.found, fmt.Errorf("read /proc: %w", err)
		}
		populated := false
		for _, group := range s.groups {
			populated = populated || group.populated()
			_ = group.kill() // the orphans include all processes in it
		}
		if len(alive) == 0 && !populated {
			for _, group := range append(s.groups, named1(s.hints.Name)...) {
				group.remove()
			}
			return s.found, nil
		}
		for _, orphan := range alive {
			if err := orphan.Kill(); err != nil {
				return s.found, fmt.Errorf("kill process %d: %w", orphan.PID, err)
			}
		}
		if err := pauses.Sleep(ctx); err != nil {
			return s.found, fmt.Errorf("%d processes of an earlier run do not end: %w", len(alive), err)
		}
	}
}

// FindOrphans returns which processes KillOrphans would kill first, and kills none.
func FindOrphans(hints Hints) ([]Orphan, error) {
	s := newSearch(hints)
	if _, err := s.look(); err != nil {
		return nil, fmt.Errorf("read /proc: %w", err)
	}
	return s.found, nil
}

// search looks for orphans repeatedly, and remembers the processes that it has seen.
type search struct {
	hints  Hints // a copy, in which each look updates the roots' Alive
	groups []cgroup
	fences bool           // the tasks had cgroups, or could have had them
	found  []Orphan       // all, once each
	seen   map[int]uint64 // the start of each of them, by number

	// As of the latest look, by number:
	families map[int]relative
	inside   map[int]string // a process's cgroup, below the supervisor's
}

func newSearch(hints Hints) *search {
	hints.Roots = slices.Clone(hints.Roots)
	s := &search{hints: hints, seen: map[int]uint64{}}
	dirs := named(hints.Name)
	if hints.Cgroup != "" && !slices.Contains(dirs, hints.Cgroup) {
		dirs = append(dirs, hints.Cgroup)
	}
	for _, dir := range dirs {
		s.groups = append(s.groups, cgroup(dir))
	}
	if s.fences = len(dirs) > 0; !s.fences && !hints.NoCgroup {
		probe := cgroups{}
		s.fences = probe.makeLocked(false) == nil
		probe.close()
	}
	if s.fences && len(hints.Unfenced) == 0 {
		s.hints.Marker = "" // counts for none
	}
	return s
}

// look finds the living orphans.
func (s *search) look() (alive []proc.Stat, err error) {
	if s.families, err = s.findFamilies(); err != nil {
		return nil, err
	}
	s.inside = map[int]string{}
	for _, group := range s.groups {
		for _, dir := range cgroupsBelow(string(group)) {
			for _, pid := range cgroup(dir).pids() {
				s.inside[pid] = strings.TrimPrefix(dir, string(group))
			}
		}
	}
	spared := map[int]bool{} // this process and those above it
	for pid := os.Getpid(); pid > 0 && !spared[pid]; {
		spared[pid] = true
		p, _ := proc.Read(pid) // zero when there is no parent
		pid = p.Parent
	}
	pids, err := s.candidates()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		if spared[pid] {
			continue
		}
		if orphan, ok := s.belongs(pid); ok {
			alive = append(alive, orphan)
			if start, seen := s.seen[pid]; !seen || start != orphan.Start {
				s.seen[pid] = orphan.Start
				s.found = append(s.found, Orphan{pid, cmp.Or(orphanTask(pid, s.inside[pid]), s.families[pid].task)})
			}
		}
	}
	return alive, nil
}

// candidates returns the processes to look at: all that this program can see only when the marker counts.
func (s *search) candidates() ([]int, error) {
	if s.hints.Marker != "" {
		return proc.PIDs()
	}
	known := map[int]bool{}
	for pid := range s.seen {
		known[pid] = true
	}
	for pid := range s.families {
		known[pid] = true
	}
	for pid := range s.inside {
		known[pid] = true
	}
	return slices.Collect(maps.Keys(known)), nil
}

// belongs reports whether a process is a living orphan. A process that was found before is one until it is dead: while
// it is dying, it has no environment any more.
func (s *search) belongs(pid int) (proc.Stat, bool) {
	start, seen := s.seen[pid]
	of, family := s.families[pid]
	_, in := s.inside[pid]
	marked := proc.HasEnv(pid, s.hints.Marker)
	if !seen && !family && !in && !marked { // like most processes of a machine, which need not be read
		return proc.Stat{}, false
	}
	now, err := proc.Read(pid)
	if err != nil || now.Dead {
		return proc.Stat{}, false
	}
	marked = marked && !s.anothers(now)
	return now, in || marked || family && now.Start == of.start || seen && now.Start == start
}

// anothers reports whether a process with the marker belongs to no task: the marker does not count, or the process is
// in a terminal that a process without the marker has opened. An operator who enters a task's environment has such a
// terminal; no task is started with one.
func (s *search) anothers(p proc.Stat) bool {
	if s.fences && !slices.Contains(s.hints.Unfenced, proc.Env(p.PID, "NOMAD_TASK_NAME")) {
		return true
	}
	d, err := proc.Describe(p.PID)
	if err != nil || d.UID != uint32(os.Geteuid()) && !slices.Contains(s.hints.Users, d.UID) {
		return true
	}
	if !p.Terminal || p.Session == p.PID || proc.HasEnv(p.Session, s.hints.Marker) {
		return false
	}
	leader, err := proc.Read(p.Session)
	_, family := s.families[p.Session]
	return err == nil && !leader.Dead && !family
}

// relative is a process that is known by its session.
type relative struct {
	task  string
	start uint64
}

// findFamilies finds the root processes that still exist, and all processes in their sessions, by number. It updates
// Alive of those root processes. A process enters a session only by its birth, or as its leader. So a process whose
// session has a root process's number descends from that process, unless another process has had the number since. The
// session is surely the root process's
//   - while the root process exists, dead or alive, or
//   - if no process has the number, and too few processes were started since the root process was last seen alive for
//     the number to be used again.
//
// Doubtful processes are left alone: they may be others'. A real case: nginx of a user who can't make cgroups. It
// overwrites its environment, its main process dies with the keeper, and its workers would hold the port that the next
// run of the task needs.
func (s *search) findFamilies() (map[int]relative, error) {
	boot, _ := proc.BootID() // empty when unknown
	if !slices.ContainsFunc(s.hints.Roots, func(r RootProcess) bool { return r.Boot == boot }) {
		return nil, nil
	}
	now := proc.Now()
	all, err := proc.All()
	if err != nil {
		return nil, err
	}
	families := map[int]relative{}
	for i, root := range s.hints.Roots {
		if root.Boot != boot || root.Start == 0 {
			continue
		}
		if p, taken := all[root.PID]; taken && p.Start == root.Start {
			families[root.PID] = relative{root.Task, root.Start}
			s.hints.Roots[i].Alive = now
		} else if taken || root.Alive.Reused(now) {
			continue
		}
		for pid, p := range all {
			if p.Session == root.PID && p.Start >= root.Start {
				families[pid] = relative{root.Task, p.Start}
			}
		}
	}
	return families, nil
}

// orphanTask returns the task in the path of a process's cgroup, below the supervisor's, or in its environment.
func orphanTask(pid int, path string) string {
	for part := range strings.SplitSeq(path, "/") {
		if task, ok := strings.CutPrefix(part, taskPrefix); ok {
			return task
		}
	}
	return proc.Env(pid, "NOMAD_TASK_NAME")
}

// cgroupsBelow returns dir and all directories below it; none if dir is empty.
func cgroupsBelow(dir string) []string {
	if dir == "" {
		return nil
	}
	dirs := []string{dir}
	entries, _ := os.ReadDir(dir) // gone: then nothing is inside
	for _, entry := range entries {
		if entry.IsDir() {
			dirs = append(dirs, cgroupsBelow(filepath.Join(dir, entry.Name()))...)
		}
	}
	return dirs
}
