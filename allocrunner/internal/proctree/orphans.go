package proctree

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"taskapi/internal/proc"
)

// Orphan is a process that outlived its supervisor.
type Orphan struct {
	PID  int
	Task string // by its cgroup, its NOMAD_TASK_NAME or its session; empty when none tells
}

// Hints are what is known of the trees of a supervisor that was itself killed.
type Hints struct {
	Cgroup   string        // the directory of the tasks' cgroups (CgroupDir), or empty
	Name     string        // Config's, by which the cgroup is found as well
	NoCgroup bool          // Config's
	Roots    []RootProcess // the root processes that had not ended

	// Marker is an environment entry that all its processes were started with, such as "NOMAD_ALLOC_DIR=" and the
	// allocation's directory, or empty. It counts for Unfenced tasks, which had no cgroup. Where there is no cgroup and
	// none can be made, it counts for all tasks. In both cases it counts only for processes of this program's user and
	// of Users.
	Marker   string
	Unfenced []string
	Users    []uint32
}

// RootProcess is the root process of such a tree.
type RootProcess struct {
	proc.Identity
	Task  string
	Alive proc.Moment // when it was last known to be alive; zero when nothing is known but that it once started
}

// KillOrphans kills what a supervisor that was itself killed has left running: everything in its cgroup, the root
// processes and all of their sessions; and every process with the marker where that counts. This program and its
// ancestors are spared, and so is what has the marker in a user's terminal. It returns the killed processes when they
// are gone. Without a cgroup, it does not find what has left its session and was started without the marker. Errors:
// ctx's when some do not end.
func KillOrphans(ctx context.Context, hints Hints) ([]Orphan, error) {
	s := newSearch(hints)
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		alive, err := s.look() // finds their tasks before any is killed: the dying have no environment
		if err != nil {
			return s.found, fmt.Errorf("read /proc: %w", err)
		}
		populated := false
		for _, group := range s.groups {
			populated = populated || group.populated()
			_ = group.kill() // what it would have reached is among the orphans
		}
		if len(alive) == 0 && !populated {
			for _, group := range s.groups {
				group.remove()
			}
			return s.found, nil
		}
		for _, orphan := range alive {
			if err := orphan.Kill(); err != nil {
				return s.found, fmt.Errorf("kill process %d: %w", orphan.PID, err)
			}
		}
		select {
		case <-ctx.Done():
			return s.found, fmt.Errorf("%d processes of an earlier run do not end: %w", len(alive), ctx.Err())
		case <-time.After(pause):
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

// search looks for orphans again and again; what it sees helps its next look.
type search struct {
	hints  Hints // its own: the roots' Alive is brought up to date
	groups []*cgroup
	fences func() bool    // reports whether the tasks had cgroups, or could have had them
	found  []Orphan       // all, once each
	seen   map[int]uint64 // when each of those found was started, by number

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
		s.groups = append(s.groups, &cgroup{dir: dir})
	}
	s.fences = sync.OnceValue(func() bool {
		if len(dirs) > 0 || hints.NoCgroup {
			return len(dirs) > 0
		}
		probe := cgroups{}
		defer probe.close()
		return probe.makeLocked() == nil
	})
	return s
}

// look finds the orphans that live.
func (s *search) look() (alive []proc.Stat, err error) {
	if s.families, err = s.findFamilies(); err != nil {
		return nil, err
	}
	pids, err := proc.PIDs()
	if err != nil {
		return nil, err
	}
	s.inside = map[int]string{}
	for _, group := range s.groups {
		for _, dir := range cgroupsBelow(group.dir) {
			for _, pid := range (&cgroup{dir: dir}).pids() {
				s.inside[pid] = strings.TrimPrefix(dir, group.dir)
			}
		}
	}
	spared := ancestors()
	for _, pid := range pids {
		if spared[pid] {
			continue
		}
		if orphan, ok := s.belongs(pid); ok {
			alive = append(alive, orphan)
			s.add(orphan)
		}
	}
	return alive, nil
}

// belongs reports whether a process is an orphan that lives. One that was found is one until it is dead: a process that is dying has no
// environment any more.
func (s *search) belongs(pid int) (proc.Stat, bool) {
	start, seen := s.seen[pid]
	of, family := s.families[pid]
	_, in := s.inside[pid]
	marked := proc.HasEnv(pid, s.hints.Marker)
	if !seen && !family && !in && !marked { // as most processes of a machine, which need not be read
		return proc.Stat{}, false
	}
	now, err := proc.Read(pid)
	if err != nil || now.Dead {
		return proc.Stat{}, false
	}
	marked = marked && !s.anothers(now)
	return now, in || marked || family && now.Start == of.start || seen && now.Start == start
}

// anothers reports whether a process that has the marker is no task's nevertheless: where the marker does not count, or
// in a terminal that a process without the marker has opened. An operator who looks at what a task sees has such a
// terminal; no task is started with one.
func (s *search) anothers(p proc.Stat) bool {
	if s.fences() && !slices.Contains(s.hints.Unfenced, proc.Env(p.PID, "NOMAD_TASK_NAME")) {
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

// add adds an orphan and its task to those found, once.
func (s *search) add(orphan proc.Stat) {
	pid := orphan.PID
	if start, seen := s.seen[pid]; seen && start == orphan.Start {
		return
	}
	s.seen[pid] = orphan.Start
	s.found = append(s.found, Orphan{pid, cmp.Or(orphanTask(pid, s.inside[pid]), s.families[pid].task)})
}

// relative is a process that is known by its session.
type relative struct {
	task  string
	start uint64
}

// findFamilies finds the root processes that are still there, and all processes in the session of one, by number. A process can enter a
// session only by its birth, or as its leader, so a process in the session with a root process's number is a descendant of that, unless the
// number has been another's since, and the session is that one's. The session is surely the root process's
//   - while that is there, dead or alive, or
//   - when nobody has the number, and too few processes have been started since the first was last seen alive for it to have been given away.
//
// All that is doubtful is left alone: it may be a stranger's. The case that a user meets: nginx of a user who can't make cgroups. It overwrites
// its environment, its main process dies with the keeper, and its workers would hold the port that the next run of the task needs. It notes that
// the root processes that are still there have been alive until now.
func (s *search) findFamilies() (map[int]relative, error) {
	boot := ""
	if self, err := proc.Identify(os.Getpid()); err == nil {
		boot = self.Boot
	}
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

// ancestors returns this process and those above it.
func ancestors() map[int]bool {
	above := map[int]bool{}
	for pid := os.Getpid(); pid > 0 && !above[pid]; {
		above[pid] = true
		s, _ := proc.Read(pid) // the last is nobody's child, which is zero
		pid = s.Parent
	}
	return above
}

// orphanTask returns the task that a process's cgroup is named after, whose path below the supervisor's is given, or that its environment names.
func orphanTask(pid int, path string) string {
	for part := range strings.SplitSeq(path, "/") {
		if task, ok := strings.CutPrefix(part, taskPrefix); ok {
			return task
		}
	}
	return proc.Env(pid, "NOMAD_TASK_NAME")
}

// cgroupsBelow returns dir and all directories below it; none when dir is empty.
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
