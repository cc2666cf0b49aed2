package proctree

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"taskapi/allocrunner/internal/proc"
)

// Stray is a process that KillStrays has killed.
type Stray struct {
	PID  int
	Task string // whose it was, by its NOMAD_TASK_NAME or its cgroup; empty when neither tells
}

// KillStrays kills what a supervisor that was itself killed has left running: everything in its cgroup directory (CgroupDir; may
// be empty) and every process that was started with the environment entry mark (may be empty), such as
// "NOMAD_ALLOC_DIR=" and the allocation's directory. This program and its ancestors are spared. It returns when they are gone, and
// says who they were. Errors: ctx's when some do not end.
func KillStrays(ctx context.Context, cgroupDir, mark string) ([]Stray, error) {
	group := &cgroup{dir: cgroupDir}
	var killed []Stray
	seen := map[int]uint64{} // when each was started, by number
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		strays, err := findStrays(cgroupDir, mark, seen)
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
func FindStrays(cgroupDir, mark string) ([]Stray, error) {
	strays, err := findStrays(cgroupDir, mark, nil)
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
// environment any more.
func findStrays(cgroupDir, mark string, seen map[int]uint64) (map[proc.Stat]string, error) {
	pids, err := proc.PIDs()
	if err != nil {
		return nil, err
	}
	inside := map[int]string{} // a process's cgroup
	for _, dir := range cgroupsBelow(cgroupDir) {
		for _, pid := range (&cgroup{dir: dir}).pids() {
			inside[pid] = dir
		}
	}
	spared := ancestors()
	strays := map[proc.Stat]string{}
	for _, pid := range pids {
		start, known := seen[pid]
		dir, in := inside[pid]
		marked := proc.HasEnv(pid, mark)
		if spared[pid] || !known && !in && !marked {
			continue
		}
		// Only now, for most processes of a machine are none.
		if s, err := proc.Read(pid); err == nil && !s.Dead && (in || marked || s.Start == start) {
			strays[s] = strayTask(pid, strings.TrimPrefix(dir, cgroupDir))
		}
	}
	return strays, nil
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
