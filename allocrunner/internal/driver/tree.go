package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/proc"
)

// A killed process is mostly gone within a millisecond; the pauses between looks double up to the longest.
const (
	firstPause   = 500 * time.Microsecond
	longestPause = 20 * time.Millisecond
)

// clear kills what is left of p's tree, with the programs beside it, waits until it is empty and its output written, and counts the
// processes besides p's first, and besides those programs, that were found alive. The tree is the union of
//   - the task's cgroup, where there is one;
//   - the descendants of its first process;
//   - orphans that this program has inherited as a subreaper and that are known by their session or, where this program is the
//     tasks' parent alone, by the environment that they inherited; with the last task all orphans go;
//   - the descendants of these.
func (l *Local) clear(ctx context.Context, p *process) (int, error) {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if p.emptied {
		return 0, p.drained(ctx)
	}
	seen := map[int]uint64{} // when each was started, by number
	beside := l.endExecs(p)
	err := l.killAll(ctx, p, seen)
	for _, e := range beside {
		select {
		case <-e.done:
		case <-ctx.Done():
		}
	}
	if err == nil && len(beside) > 0 {
		err = l.killAll(ctx, p, seen) // what could not be told from them
	}
	if err != nil {
		return len(seen), err
	}
	p.emptied = true
	p.group.remove()
	l.reaper.kick()
	return len(seen), p.drained(ctx)
}

// killAll kills until nothing is left, and adds whom it met to seen. Who was a member once stays one until it is dead, though the
// ancestor by which it was known may be gone.
func (l *Local) killAll(ctx context.Context, p *process, seen map[int]uint64) error {
	empty := 0
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		running := p.running() // before the look: a parent that ends during it hides its children
		members, err := l.members(p, running, seen)
		if err != nil {
			return fmt.Errorf("read /proc: %w", err)
		}
		for _, s := range members {
			seen[s.PID] = s.Start
			l.reaper.know(s)
		}
		if len(members) > 0 || running || p.group.populated() {
			empty = 0
		} else if empty++; empty == p.looks() {
			return nil
		}
		if err := killMembers(p, members); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d processes do not end (the first is %v): %w", len(members), first(members, p), ctx.Err())
		case <-time.After(pause):
		}
	}
}

// looks is how often in a row a tree must be found empty. /proc is no snapshot: a process whose parent ends between two reads has
// none for one look. A cgroup can't be wrong.
func (p *process) looks() int {
	if p.group.works() {
		return 1
	}
	return 2
}

// killMembers kills the cgroup first, which is atomic, then by number whom that did not reach.
func killMembers(p *process, members []proc.Stat) error {
	_ = p.group.kill() // what it would have reached is among the members
	if p.running() {
		if err := p.signal(unix.SIGKILL); err != nil && p.running() && !errors.Is(err, ErrNotRunning) {
			return fmt.Errorf("kill process %d: %w", p.pid, err)
		}
	}
	for _, s := range members {
		if err := s.Kill(); err != nil {
			return fmt.Errorf("kill process %d: %w", s.PID, err)
		}
	}
	return nil
}

func first(members []proc.Stat, p *process) int {
	if len(members) > 0 {
		return members[0].PID
	}
	return p.pid
}

// members finds the living processes of the tree, but for p's first.
func (l *Local) members(p *process, running bool, seen map[int]uint64) ([]proc.Stat, error) {
	all, err := proc.All()
	if err != nil {
		return nil, err
	}
	in := map[int]bool{}
	if running {
		in[p.pid] = true
	}
	for _, pid := range p.group.pids() {
		in[pid] = true
	}
	beside := map[int]bool{}
	last := false
	if p.owner == nil {
		beside = l.execMembers()
		last = l.cfg.Sole && !l.othersRun(p.task)
	}
	self := os.Getpid()
	for pid, s := range all {
		start, known := seen[pid]
		orphan := s.Parent == self && pid != p.pid && !l.starter.own.has(pid)
		if known && start == s.Start || orphan && l.orphanOf(p, s, last) {
			in[pid] = true
		}
	}
	var members []proc.Stat
	for pid, s := range all {
		if pid != p.pid && !s.Dead && descends(pid, in, all) && !beside[s.Session] && !descends(pid, beside, all) {
			members = append(members, s)
		}
	}
	return members, nil
}

// orphanOf reports whether an inherited process comes from p.
func (l *Local) orphanOf(p *process, s proc.Stat, last bool) bool {
	return s.Session == p.pid || last || l.cfg.Sole && proc.HasEnv(s.PID, p.mark)
}

// descends reports whether pid or one of its ancestors is in the set.
func descends(pid int, in map[int]bool, all map[int]proc.Stat) bool {
	for range len(all) { // a bound, should pids have been used again during the snapshot
		if in[pid] {
			return true
		}
		s, ok := all[pid]
		if !ok || s.Parent == 0 {
			return false
		}
		pid = s.Parent
	}
	return false
}
