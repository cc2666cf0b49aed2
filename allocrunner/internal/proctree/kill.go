package proctree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/internal/proc"
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
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		running := t.Running() // before the look: a parent that ends during the look hides its children
		members, err := t.members(running, found, execTrees)
		if err != nil {
			return fmt.Errorf("read /proc: %w", err)
		}
		for _, s := range members {
			found[s.PID] = s.Start
		}
		if len(members) > 0 || running || t.group.populated() {
			empty = 0
		} else if empty++; empty == 2 || t.group != "" {
			// /proc is no snapshot: a process whose parent ends between two reads has no parent in one look. A cgroup
			// can't be wrong.
			return nil
		}
		if err := t.killMembers(members); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			first := t.root.Pid
			if len(members) > 0 {
				first = members[0].PID
			}
			return fmt.Errorf("%d processes do not end (the first is %v): %w", len(members), first, ctx.Err())
		case <-time.After(pause):
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

// members finds the living processes of the tree, without the root process.
func (t *Tree) members(running bool, found Found, execTrees ExecTrees) ([]proc.Stat, error) {
	own := t.set.own.now() // before the look, too: a root process that ends during the look is no orphan
	all, err := t.set.processes()
	if err != nil {
		return nil, err
	}
	in := map[int]bool{}
	if running {
		in[t.root.Pid] = true
	}
	t.addInside(in)
	spared, last := t.execProcesses(execTrees)
	self := os.Getpid()
	for pid, s := range all {
		start, known := found[pid]
		inherited := s.Parent == self && pid != t.root.Pid && own[pid] == nil && !t.set.own.has(pid)
		if known && start == s.Start || inherited && t.claims(s, last) {
			in[pid] = true
		}
	}
	var members []proc.Stat
	for pid, s := range all {
		if pid == t.root.Pid || s.Dead || spared[s.Session] {
			continue
		}
		_, inside := nearest(pid, in, all)
		if _, isSpared := nearest(pid, spared, all); inside && !isSpared {
			members = append(members, s)
		}
	}
	return members, nil
}

// addInside adds the processes in the tree's cgroup.
func (t *Tree) addInside(to map[int]bool) {
	for _, pid := range t.group.pids() {
		to[pid] = true
	}
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
		tree.addInside(spared)
	}
	return spared, !othersRun
}

// claims reports whether an inherited process belongs to the tree. A cgroup alone decides: the marker counts neither
// for a tree that has a cgroup, nor for a process in another tree's cgroup.
func (t *Tree) claims(s proc.Stat, last bool) bool {
	return s.Session == t.root.Pid || last ||
		t.group == "" && proc.HasEnv(s.PID, t.marker) && !t.set.cgroups.has(s.PID)
}
