package proctree

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/internal/proc"
	"taskapi/internal/wake"
)

// A killed process is mostly gone within a millisecond. The pauses between looks double up to the longest.
const (
	firstPause   = 500 * time.Microsecond
	longestPause = 20 * time.Millisecond
)

// Found holds the processes that a Kill has found alive besides the root process: the start of each, by number. They
// belong to the tree until they are dead, even if the ancestor by which they were known is gone.
type Found map[int]uint64

// ExecTrees returns the trees of a task's exec children, which Kill spares, and whether the root process of another
// task runs or is being started. It is called at each look.
type ExecTrees func() (trees []*Tree, othersRun bool)

// Kill kills the processes of the tree, waits until it is empty, and adds the processes that it found alive to found.
// The tree is the union of
//   - its cgroup, if it has one;
//   - the descendants of its root process;
//   - processes that this program has inherited as a subreaper and that are known by their session or by the tree's
//     marker. With the last task, all inherited processes are killed;
//   - the descendants of these.
//
// execTrees is nil for an exec child. Of the inherited processes, only those of its session belong to it; others are
// left to its task's own Kill. If some do not end, the error is ctx's.
func (t *Tree) Kill(ctx context.Context, found Found, execTrees ExecTrees) error {
	empty := 0
	var before map[int]bool // the processes that the look before has found dead
	for pauses := (wake.Backoff{First: firstPause, Last: longestPause}); ; {
		running := t.Running() // before the look: a parent that ends during the look hides its children
		populated := t.group.populated()
		members, dead, err := t.members(running, populated, found, execTrees)
		if err != nil {
			return err
		}
		for _, s := range members {
			found[s.PID] = s.Start
		}
		if len(members) == 0 && !running && !populated {
			// A cgroup can't be wrong. But a look is no snapshot: a process that ends during the look hides its children,
			// which this program inherits. One that is alive after that is found by the next look, or ends during that look,
			// too: then it is among the dead for the first time.
			empty++
			ended := func(pid int) bool { return dead[pid] && !before[pid] }
			if t.group != "" || empty > 1 && !slices.ContainsFunc(slices.Collect(maps.Keys(dead)), ended) {
				return nil
			}
			if before = dead; ctx.Err() != nil {
				return fmt.Errorf("processes start others faster than they are found: %w", ctx.Err())
			}
			continue
		}
		empty = 0
		if err := t.killMembers(members); err != nil {
			return err
		}
		if err := pauses.Sleep(ctx); err != nil {
			first := t.root.Pid
			if len(members) > 0 {
				first = members[0].PID
			}
			return fmt.Errorf("%d processes do not end (the first is %v): %w", len(members), first, err)
		}
	}
}

// killMembers kills the cgroup first, which is atomic, and then the processes that are not in it.
func (t *Tree) killMembers(members []proc.Stat) error {
	_ = t.group.kill() // the members include all processes in it
	if t.Running() {
		err := t.root.Signal(unix.SIGKILL)
		if err != nil && t.Running() && !errors.Is(err, os.ErrProcessDone) && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", t.root.Pid, err)
		}
	}
	for _, s := range members {
		if err := s.Kill(); err != nil {
			return fmt.Errorf("kill process %d: %w", s.PID, err)
		}
	}
	return nil
}

// members finds the living processes of the tree, without the root process, and those that end meanwhile or are dead.
func (t *Tree) members(
	running, populated bool, found Found, execTrees ExecTrees,
) (members []proc.Stat, dead map[int]bool, err error) {
	own := t.set.own.now() // before the look, too: a root process that ends during the look is no orphan
	self := os.Getpid()
	now := proc.UptimeTicks()
	inherited, err := t.set.children(self)
	if err != nil {
		return nil, nil, err
	}
	spared, last := t.execProcesses(execTrees)
	dead = map[int]bool{}
	var ancestors []int
	if populated {
		ancestors = t.group.pids()
	}
	if running {
		ancestors = append(ancestors, t.root.Pid)
	}
	for pid, start := range found {
		if s, err := proc.Read(pid); err == nil && s.Start == start {
			ancestors = append(ancestors, pid)
		}
	}
	for _, pid := range inherited {
		if pid == t.root.Pid || own[pid] != nil || t.set.own.has(pid) {
			continue
		}
		if s, err := proc.Read(pid); err != nil || s.Parent == self && t.claims(s, last) {
			ancestors = append(ancestors, pid)
		}
	}
	visited := map[int]bool{}
	for len(ancestors) > 0 {
		pid := ancestors[0]
		ancestors = ancestors[1:]
		if visited[pid] || spared[pid] {
			continue
		}
		visited[pid] = true
		s, err := proc.Read(pid)
		if err != nil || s.Dead {
			dead[pid] = true
			continue
		}
		if pid != t.root.Pid && !spared[s.Session] {
			members = append(members, s)
		}
		if s.Start > now { // its children are for the next look, or one that forks all the time would keep this one busy
			continue
		}
		children, err := t.set.children(pid)
		if err != nil {
			return nil, nil, err
		}
		ancestors = append(ancestors, children...)
	}
	return members, dead, nil
}

// execProcesses returns the root processes of exec children and the processes in their cgroups. last reports whether
// all inherited processes belong to this tree.
func (t *Tree) execProcesses(execTrees ExecTrees) (spared map[int]bool, last bool) {
	spared = map[int]bool{}
	if execTrees == nil {
		return spared, false
	}
	trees, othersRun := execTrees()
	for _, tree := range trees {
		spared[tree.root.Pid] = true
		for _, pid := range tree.group.pids() {
			spared[pid] = true
		}
	}
	return spared, !othersRun
}

// claims reports whether an inherited process belongs to the tree. A cgroup alone decides: the marker counts neither
// for a tree that has a cgroup, nor for a process in another tree's cgroup.
func (t *Tree) claims(s proc.Stat, last bool) bool {
	return s.Session == t.root.Pid || last ||
		t.group == "" && proc.HasEnv(s.PID, t.marker) && !t.set.cgroups.has(s.PID)
}
