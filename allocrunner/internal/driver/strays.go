package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// KillStrays kills what a supervisor that was itself killed has left running: everything in its cgroup directory (CgroupDir; may
// be empty) and every process that was started with the environment entry mark (may be empty), such as
// "NOMAD_ALLOC_DIR=" and the allocation's directory. This program and its ancestors are spared. It returns when they are gone, with
// their number. Errors: ctx's when some do not end.
func KillStrays(ctx context.Context, cgroupDir, mark string) (int, error) {
	group := &cgroup{dir: cgroupDir}
	seen := map[int]uint64{} // when each was started, by number
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		strays, err := findStrays(cgroupDir, mark, seen)
		if err != nil {
			return len(seen), fmt.Errorf("read /proc: %w", err)
		}
		if len(strays) == 0 && !group.populated() {
			group.remove()
			return len(seen), nil
		}
		_ = group.kill() // what it would have reached is among the strays
		for _, s := range strays {
			seen[s.pid] = s.start
			if err := killExact(s); err != nil {
				return len(seen), fmt.Errorf("kill process %d: %w", s.pid, err)
			}
		}
		select {
		case <-ctx.Done():
			return len(seen), fmt.Errorf("%d processes of an earlier run do not end: %w", len(strays), ctx.Err())
		case <-time.After(pause):
		}
	}
}

// findStrays finds those that live. Who is in seen is one until it is dead: a process that is dying has no environment any more.
func findStrays(cgroupDir, mark string, seen map[int]uint64) ([]stat, error) {
	all, err := snapshot()
	if err != nil {
		return nil, err
	}
	inside := map[int]bool{}
	for _, dir := range cgroupsBelow(cgroupDir) {
		for _, pid := range (&cgroup{dir: dir}).pids() {
			inside[pid] = true
		}
	}
	spared := map[int]bool{}
	for pid := os.Getpid(); pid > 0 && !spared[pid]; pid = all[pid].parent {
		spared[pid] = true
	}
	var strays []stat
	for pid, s := range all {
		if s.dead || spared[pid] {
			continue
		}
		if start, known := seen[pid]; known && start == s.start || inside[pid] || hasEnv(pid, mark) {
			strays = append(strays, s)
		}
	}
	return strays, nil
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

// Identity names a process for good: a number may be used again, and a start time means nothing after a reboot.
type Identity struct {
	PID   int
	Start uint64 // clock ticks after boot
	Boot  string // the kernel's random ID of this boot
}

// Identify finds the identity of a running process. The error is os.ErrNotExist when there is none.
func Identify(pid int) (Identity, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	s, err := readStat(pid)
	if err == nil && s.dead {
		err = os.ErrNotExist
	}
	if err != nil {
		return Identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	return Identity{PID: pid, Start: s.start, Boot: string(boot[:max(0, len(boot)-1)])}, nil
}

// Runs reports whether that very process still runs.
func (id Identity) Runs() bool {
	now, err := Identify(id.PID)
	return err == nil && now == id
}
