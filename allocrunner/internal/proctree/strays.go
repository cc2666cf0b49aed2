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

// Lost is what is known of the trees of a supervisor that was itself killed.
type Lost struct {
	Cgroup string  // the directory of its tasks' (CgroupDir), or empty
	Mark   string  // an environment entry that all its processes were started with, such as "NOMAD_ALLOC_DIR=" and the allocation's directory, or empty
	Firsts []First // the first processes that had not ended
}

// First is the first process of such a tree.
type First struct {
	proc.Identity
	Task  string
	Alive proc.Moment // when it still was one; zero when nothing is known but that it once started
}

// KillStrays kills what a supervisor that was itself killed has left running: everything in its cgroup, every process that was started with
// the mark, the first processes and all of their sessions. This program and its ancestors are spared. It returns when they are
// gone, and says who they were. Without a cgroup, it does not find what has left its session and was started without the
// mark. Errors: ctx's when some do not end.
func KillStrays(ctx context.Context, lost Lost) ([]Stray, error) {
	group := &cgroup{dir: lost.Cgroup}
	lost.Firsts = slices.Clone(lost.Firsts)
	var killed []Stray
	seen := map[int]uint64{} // when each was started, by number
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		strays, err := findStrays(lost, seen)
		if err != nil {
			return killed, fmt.Errorf("read /proc: %w", err)
		}
		if len(strays) == 0 && !group.populated() {
			group.remove()
			return killed, nil
		}
		for s, task := range strays { // before any is killed: the dying have no environment
			if seen[s.PID] != s.Start {
				killed = append(killed, Stray{s.PID, task})
			}
			seen[s.PID] = s.Start
		}
		_ = group.kill() // what it would have reached is among the strays
		for s := range strays {
			if err := s.Kill(); err != nil {
				return killed, fmt.Errorf("kill process %d: %w", s.PID, err)
			}
		}
		select {
		case <-ctx.Done():
			return killed, fmt.Errorf("%d processes of an earlier run do not end: %w", len(strays), ctx.Err())
		case <-time.After(pause):
		}
	}
}

// FindStrays says whom KillStrays would kill first, and kills nobody.
func FindStrays(lost Lost) ([]Stray, error) {
	lost.Firsts = slices.Clone(lost.Firsts)
	strays, err := findStrays(lost, nil)
	if err != nil {
		return nil, fmt.Errorf("read /proc: %w", err)
	}
	found := make([]Stray, 0, len(strays))
	for s, task := range strays {
		found = append(found, Stray{s.PID, task})
	}
	return found, nil
}

// findStrays finds those that live, and whose they are. Who is in seen is one until it is dead: a process that is dying has no
// environment any more. Of the first processes it notes which are still there.
func findStrays(lost Lost, seen map[int]uint64) (map[proc.Stat]string, error) {
	families, err := findFamilies(lost.Firsts)
	if err != nil {
		return nil, err
	}
	pids, err := proc.PIDs()
	if err != nil {
		return nil, err
	}
	inside := map[int]string{} // a process's cgroup
	for _, dir := range cgroupsBelow(lost.Cgroup) {
		for _, pid := range (&cgroup{dir: dir}).pids() {
			inside[pid] = dir
		}
	}
	spared := ancestors()
	strays := map[proc.Stat]string{}
	for _, pid := range pids {
		start, known := seen[pid]
		of, family := families[pid]
		dir, in := inside[pid]
		marked := proc.HasEnv(pid, lost.Mark)
		if spared[pid] || !known && !family && !in && !marked {
			continue
		}
		// Only now, for most processes of a machine are none.
		s, err := proc.Read(pid)
		family = family && s.Start == of.start
		if err != nil || s.Dead || !in && !marked && !family && s.Start != start {
			continue
		}
		strays[s] = cmp.Or(strayTask(pid, strings.TrimPrefix(dir, lost.Cgroup)), of.task)
	}
	return strays, nil
}

// relative is a process that is known by its session.
type relative struct {
	task  string
	start uint64
}

// findFamilies finds the first processes that are still there, and all who are in the session of one, by number. A process can enter a
// session only by its birth, or as its leader, so who is in the session with a first process's number is a descendant of that, unless the
// number has been another's since, and the session is that one's. (Process groups would tell no more: each is in one session.) The
// session is surely the first process's
//   - while that is there, dead or alive, or
//   - when nobody has the number, and it can't have been given away since the process was last seen alive; for it is not as long as
//     the session has anyone in it, or before all others had their turn.
//
// All that is doubtful is left alone: it may be a stranger's.
func findFamilies(firsts []First) (map[int]relative, error) {
	boot := ""
	if self, err := proc.Identify(os.Getpid()); err == nil {
		boot = self.Boot
	}
	if !slices.ContainsFunc(firsts, func(f First) bool { return f.Boot == boot }) {
		return nil, nil
	}
	now := proc.Now()
	all, err := proc.All()
	if err != nil {
		return nil, err
	}
	families := map[int]relative{}
	for i, f := range firsts {
		if f.Boot != boot || f.Start == 0 {
			continue
		}
		if s, taken := all[f.PID]; taken && s.Start == f.Start {
			families[f.PID] = relative{f.Task, f.Start}
			firsts[i].Alive = now
		} else if taken || !f.heldOn(now, all) {
			continue
		}
		for pid, s := range all {
			if s.Session == f.PID && s.Start >= f.Start {
				families[pid] = relative{f.Task, s.Start}
			}
		}
	}
	return families, nil
}

// heldOn reports whether the number of a first process that is gone, and that nobody has, can't have been another's since: too few
// processes have been started, or the session still has one in it that was started while the first process was alive.
func (f First) heldOn(now proc.Moment, all map[int]proc.Stat) bool {
	if !f.Alive.Turned(now) {
		return true
	}
	for _, s := range all {
		if f.Alive.In(now) && s.Session == f.PID && s.Start >= f.Start && s.Start <= f.Alive.Ticks {
			return true
		}
	}
	return false
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

// strayTask is the task that a process says it is of, or that its cgroup is named after.
func strayTask(pid int, group string) string {
	for part := range strings.SplitSeq(group, "/") {
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
