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

// A killed process is mostly gone within a millisecond; the pauses between looks double up to the longest.
const (
	firstPause   = 500 * time.Microsecond
	longestPause = 20 * time.Millisecond
)

// Found holds the processes that a Kill has found alive besides the root process: when each was started, by number. Such a process counts as
// one of the tree until it is dead, though the ancestor by which it was known may be gone.
type Found map[int]uint64

// ExecTrees returns what a look for a task's tree must know of the other trees: those of ExecChild, which are spared, and whether the root
// process of another task runs, or is being started. It is called at each look, for they come and go.
type ExecTrees func() (trees []*Tree, othersRun bool)

// Kill kills what is left of the tree, waits until it is empty, and adds the processes that it found alive to found. The tree is the union of
//   - its cgroup, where there is one;
//   - the descendants of its root process;
//   - processes that this program has inherited as a subreaper and that are known by their session or, where this program has no other
//     children, by the tree's marker; with the last task all inherited processes go;
//   - the descendants of these.
//
// execTrees is nil for an exec child, which takes no inherited process but its session's and may leave others to its task's own Kill. The error
// is ctx's when some do not end.
func (t *Tree) Kill(ctx context.Context, found Found, execTrees ExecTrees) error {
	empty := 0
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		running := t.Running() // before the look: a parent that ends during it hides its children
		members, err := t.members(running, found, execTrees)
		if err != nil {
			return fmt.Errorf("read /proc: %w", err)
		}
		for _, s := range members {
			found[s.PID] = s.Start
			t.set.reaper.know(s)
		}
		if len(members) > 0 || running || t.group.populated() {
			empty = 0
		} else if empty++; empty == t.looks() {
			return nil
		}
		if err := t.killMembers(members); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d processes do not end (the first is %v): %w", len(members), t.oneOf(members), ctx.Err())
		case <-time.After(pause):
		}
	}
}

// looks returns how often in a row a tree must be found empty. /proc is no snapshot: a process whose parent ends between two reads has
// none for one look. A cgroup can't be wrong.
func (t *Tree) looks() int {
	if t.group != nil {
		return 1
	}
	return 2
}

// killMembers kills the cgroup first, which is atomic, then by number those that it did not reach.
func (t *Tree) killMembers(members []proc.Stat) error {
	_ = t.group.kill() // what it would have reached is among the members
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

func (t *Tree) oneOf(members []proc.Stat) int {
	if len(members) > 0 {
		return members[0].PID
	}
	return t.root.Pid
}

// members finds the living processes of the tree, but for the root.
func (t *Tree) members(running bool, found Found, execTrees ExecTrees) ([]proc.Stat, error) {
	own := t.set.own.now() // before the look, too: one of them that ends during it is no orphan
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
		inherited := s.Parent == self && pid != t.root.Pid && !own[pid] && !t.set.own.has(pid)
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

// execProcesses returns the processes by which exec children are known: their root processes, and those in their cgroups. last says that all
// inherited processes are this tree's.
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
	return spared, t.set.ownsAllChildren && !othersRun
}

// claims reports whether an inherited process is of the tree. Where there is a cgroup, it alone decides: what a process says of itself counts for
// nothing in a tree that has one, nor when it is in another's.
func (t *Tree) claims(s proc.Stat, last bool) bool {
	switch {
	case s.Session == t.root.Pid || last:
		return true
	case !t.set.ownsAllChildren || t.group != nil || !proc.HasEnv(s.PID, t.marker):
		return false
	}
	return !t.set.cgroups.has(s.PID)
}
