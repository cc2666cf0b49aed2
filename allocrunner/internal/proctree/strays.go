package proctree

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"taskapi/allocrunner/internal/proc"
)

// Stray is a process that KillStrays has killed.
type Stray struct {
	PID  int
	Task string // whose it was, by its cgroup, its NOMAD_TASK_NAME or its session; empty when none tells
}

// Clues are what is known of the trees of a supervisor that was itself killed.
type Clues struct {
	Cgroup string  // the directory of its tasks' (CgroupDir), or empty
	Name   string  // its Config's, by which the cgroup is found as well
	Mark   string  // an environment entry that all its processes were started with, such as "NOMAD_ALLOC_DIR=" and the allocation's directory, or empty
	Firsts []First // the first processes that had not ended
}

// First is the first process of such a tree.
type First struct {
	proc.Identity
	Task  string
	Alive proc.Moment // when it was last known to be alive; zero when nothing is known but that it once started
}

// KillStrays kills what a supervisor that was itself killed has left running: everything in its cgroup, the first processes and all of their
// sessions; and every process with the mark, of tasks that had no cgroup, for where there is one it alone decides. This program and its ancestors
// are spared, and so is what has the mark in somebody's terminal. It returns when they are gone, and says who they were. Without a cgroup, it does
// not find what has left its session and was started without the mark. Errors: ctx's when some do not end.
func KillStrays(ctx context.Context, clues Clues) ([]Stray, error) {
	s := newSearch(clues)
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		alive, err := s.look() // says whose they are before any is killed: the dying have no environment
		if err != nil {
			return s.found, fmt.Errorf("read /proc: %w", err)
		}
		populated := false
		for _, group := range s.groups {
			populated = populated || group.populated()
			_ = group.kill() // what it would have reached is among the strays
		}
		if len(alive) == 0 && !populated {
			for _, group := range s.groups {
				group.remove()
			}
			return s.found, nil
		}
		for _, stray := range alive {
			if err := stray.Kill(); err != nil {
				return s.found, fmt.Errorf("kill process %d: %w", stray.PID, err)
			}
		}
		select {
		case <-ctx.Done():
			return s.found, fmt.Errorf("%d processes of an earlier run do not end: %w", len(alive), ctx.Err())
		case <-time.After(pause):
		}
	}
}

// FindStrays says whom KillStrays would kill first, and kills nobody.
func FindStrays(clues Clues) ([]Stray, error) {
	s := newSearch(clues)
	if _, err := s.look(); err != nil {
		return nil, fmt.Errorf("read /proc: %w", err)
	}
	return s.found, nil
}

// search looks for strays again and again; what it sees helps its next look.
type search struct {
	groups []*cgroup
	mark   string
	fenced map[string]bool // the tasks that have a cgroup
	firsts []First         // its own: Alive is brought up to date
	found  []Stray         // all, once each
	seen   map[int]uint64  // when each of those found was started, by number

	// As of the latest look, by number:
	families map[int]relative
	inside   map[int]string // a process's cgroup, below the supervisor's
}

func newSearch(clues Clues) *search {
	s := &search{mark: clues.Mark, fenced: map[string]bool{}, firsts: slices.Clone(clues.Firsts), seen: map[int]uint64{}}
	dirs := named(clues.Name)
	if clues.Cgroup != "" && !slices.Contains(dirs, clues.Cgroup) {
		dirs = append(dirs, clues.Cgroup)
	}
	for _, dir := range dirs {
		s.groups = append(s.groups, &cgroup{dir: dir})
		entries, _ := os.ReadDir(dir) // gone
		for _, entry := range entries {
			if task, ok := strings.CutPrefix(entry.Name(), "task."); ok && entry.IsDir() {
				s.fenced[task] = true
			}
		}
	}
	return s
}

// look finds the strays that live.
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
		if stray, ok := s.belongs(pid); ok {
			alive = append(alive, stray)
			s.note(stray)
		}
	}
	return alive, nil
}

// belongs reports whether a process is a stray that lives. One that was found is one until it is dead: a process that is dying has no
// environment any more.
func (s *search) belongs(pid int) (proc.Stat, bool) {
	start, seen := s.seen[pid]
	of, family := s.families[pid]
	_, in := s.inside[pid]
	marked := proc.HasEnv(pid, s.mark)
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

// anothers reports whether a process has the mark and is no task's all the same: outside the cgroup of the task that it names, or in a terminal
// that somebody without the mark has opened, as an operator has who looks at what a task sees. No task is born with a terminal.
func (s *search) anothers(p proc.Stat) bool {
	if s.fenced[proc.Env(p.PID, "NOMAD_TASK_NAME")] {
		return true
	}
	if !p.Terminal || p.Session == p.PID || proc.HasEnv(p.Session, s.mark) {
		return false
	}
	leader, err := proc.Read(p.Session)
	_, family := s.families[p.Session]
	return err == nil && !leader.Dead && !family
}

// note notes a stray and whose it is, once.
func (s *search) note(stray proc.Stat) {
	pid := stray.PID
	if start, seen := s.seen[pid]; seen && start == stray.Start {
		return
	}
	s.seen[pid] = stray.Start
	s.found = append(s.found, Stray{pid, cmp.Or(strayTask(pid, s.inside[pid]), s.families[pid].task)})
}

// relative is a process that is known by its session.
type relative struct {
	task  string
	start uint64
}

// findFamilies finds the first processes that are still there, and all who are in the session of one, by number. A process can enter a
// session only by its birth, or as its leader, so who is in the session with a first process's number is a descendant of that, unless the
// number has been another's since, and the session is that one's. The session is surely the first process's
//   - while that is there, dead or alive, or
//   - when nobody has the number, and too few processes have been started since the first was last seen alive for it to have been given away.
//
// All that is doubtful is left alone: it may be a stranger's. The case that a user meets: nginx of a user who can't make cgroups. It overwrites
// its environment, its main process dies with the keeper, and its workers would hold the port that the next run of the task needs. It notes that
// the first processes that are still there have been alive until now.
func (s *search) findFamilies() (map[int]relative, error) {
	boot := ""
	if self, err := proc.Identify(os.Getpid()); err == nil {
		boot = self.Boot
	}
	if !slices.ContainsFunc(s.firsts, func(f First) bool { return f.Boot == boot }) {
		return nil, nil
	}
	now := proc.Now()
	all, err := proc.All()
	if err != nil {
		return nil, err
	}
	families := map[int]relative{}
	for i, f := range s.firsts {
		if f.Boot != boot || f.Start == 0 {
			continue
		}
		if p, taken := all[f.PID]; taken && p.Start == f.Start {
			families[f.PID] = relative{f.Task, f.Start}
			s.firsts[i].Alive = now
		} else if taken || f.Alive.Reused(now) {
			continue
		}
		for pid, p := range all {
			if p.Session == f.PID && p.Start >= f.Start {
				families[pid] = relative{f.Task, p.Start}
			}
		}
	}
	return families, nil
}

// ancestors are this process and those above it.
func ancestors() map[int]bool {
	above := map[int]bool{}
	for pid := os.Getpid(); pid > 0 && !above[pid]; {
		above[pid] = true
		s, _ := proc.Read(pid) // the last is nobody's child, which is zero
		pid = s.Parent
	}
	return above
}

// strayTask is the task that a process says it is of, or that its cgroup is named after, whose path below the supervisor's is given.
func strayTask(pid int, path string) string {
	for part := range strings.SplitSeq(path, "/") {
		if task, ok := strings.CutPrefix(part, "task."); ok {
			return task
		}
	}
	return proc.Env(pid, "NOMAD_TASK_NAME")
}

// cgroupsBelow is dir and all directories below it; none when dir is empty.
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
