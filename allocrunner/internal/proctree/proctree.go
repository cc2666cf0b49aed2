// Package proctree fences, finds, kills and reaps trees of processes. A tree is a process that this program starts, its root, and all
// descendants of it, whatever they do to their parents, sessions and process groups. It promises that
//   - a Kill without an error has left nothing of the tree. With cgroups nothing gets out of one. Without them, what has left its session
//     and lost its parent is found only where this program is the parent of tasks alone;
//   - no other process is killed: neither another program's, nor one that has got the number of a dead one since;
//   - dead processes are reaped, and no other program's child is: an exit code goes to the one that waits for it;
//   - what a killed supervisor has left of its trees is found by the next.
//
// It does not say when to start or kill anything, and has no part in what processes read and write.
package proctree

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"taskapi/internal/proc"
)

// Config is what a Trees is made of.
type Config struct {
	// OwnsAllChildren says that this program starts no children but those of trees. Then every process that it inherits is of one of them: all
	// are reaped, and all are killed with the last task. Otherwise only those are that a Kill has found, for the rest may be another's.
	OwnsAllChildren bool

	// NoCgroup leaves cgroups alone: trees are found by descent and session only.
	NoCgroup bool

	// Name is part of the cgroup's name, by which orphans are found; empty: it has a number alone.
	Name string
}

// Trees are the trees whose root processes this program starts. All methods are safe for concurrent use.
type Trees struct {
	ownsAllChildren bool
	own             *ownSet
	reaper          *reaper
	cgroups         *cgroups
	processes       func() (map[int]proc.Stat, error) // proc.All
}

// New makes a Trees. It does no I/O and starts nothing.
func New(cfg Config) *Trees {
	own := &ownSet{pids: map[int]*os.Process{}}
	return &Trees{
		ownsAllChildren: cfg.OwnsAllChildren,
		own:             own,
		reaper:          &reaper{own: own, all: cfg.OwnsAllChildren, wake: make(chan struct{}, 1), known: map[int]uint64{}},
		cgroups:         &cgroups{off: cfg.NoCgroup, name: cfg.Name},
		processes:       proc.All,
	}
}

// Run reaps the orphans that this program inherits, until quit is closed.
func (s *Trees) Run(quit <-chan struct{}) { s.reaper.run(quit) }

// CgroupDir returns the cgroup that holds those of all tasks, empty while there is none.
func (s *Trees) CgroupDir() string { return s.cgroups.dirName() }

// Close removes the cgroups. No tree has anything left by then.
func (s *Trees) Close() { s.cgroups.close() }

// Task makes the fence for a run of the task. Its name must be fit for a file. marker is an entry of the root process's environment that only
// the task's processes have, by which a parent that owns all children finds what has left everything else behind; it may be empty.
func (s *Trees) Task(task, marker string) *Tree {
	group, noCgroup := s.cgroups.add(task)
	return &Tree{set: s, group: group, noCgroup: noCgroup, marker: marker, ended: make(chan struct{})}
}

// Tree is one tree. Its methods may be called at any time once Start has returned.
type Tree struct {
	set        *Trees
	group      *cgroup     // nil: there is none
	noCgroup   error       // why
	marker     string      // an environment entry that the descendants share, or empty
	root       *os.Process // set by Start
	startTicks uint64      // when that was started, in clock ticks after boot; 0 when unknown
	ended      chan struct{}
}

// ExecChild makes the fence for a program that runs beside the root process: inside the task's where there are cgroups, so that it can be killed alone and goes
// with the task.
func (t *Tree) ExecChild(name string) *Tree {
	b := &Tree{set: t.set, noCgroup: t.noCgroup, ended: make(chan struct{})}
	if t.group != nil {
		b.group, b.noCgroup = t.group.below(name)
	}
	return b
}

// Start starts the root process, in its cgroup or, where the kernel does not allow that, outside, and in a session of its own. attr.Sys
// must be set and is changed. When it fails, there is only Remove to be called. Others can't start or be reaped until the program is executed:
// it must not be one whose file system may hang.
func (t *Tree) Start(path string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
	// Orphans come to this program then. Linux before 5.4 lacks it, and they go to PID 1.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	attr.Sys.Setsid = true
	start := func() (*os.Process, error) { return os.StartProcess(path, argv, attr) }
	var err error
	if t.root, err = t.fenced(attr, func() (*os.Process, error) { return t.set.own.start(start) }); err != nil {
		return nil, err
	}
	s, _ := proc.Read(t.root.Pid) // there, if only as a zombie: nobody has waited for it
	t.startTicks = s.Start
	return t.root, nil
}

// StartTicks returns when the root process was started, in clock ticks after boot, as a proc.Identity has it; 0 when unknown.
func (t *Tree) StartTicks() uint64 { return t.startTicks }

// NoCgroup returns why the root process runs in no cgroup of its own, nil when it does.
func (t *Tree) NoCgroup() error { return t.noCgroup }

// fenced starts the process in the tree's cgroup if that can be.
func (t *Tree) fenced(attr *os.ProcAttr, start func() (*os.Process, error)) (*os.Process, error) {
	if t.group != nil {
		first, err := t.startInside(attr, start)
		for _, full := range []error{unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE} { // no fault of the cgroup's
			if errors.Is(err, full) {
				return nil, err
			}
		}
		if err == nil {
			return first, nil
		}
		t.group.remove()
		t.group, t.noCgroup = nil, err
	}
	return start()
}

func (t *Tree) startInside(attr *os.ProcAttr, start func() (*os.Process, error)) (*os.Process, error) {
	dir, err := t.group.open()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(dir.Fd())
	defer func() { attr.Sys.UseCgroupFD = false }()
	return start()
}

// Wait waits for the end of the root process, which nothing else may wait for, and calls record with it. When that has returned, the process
// counts as ended.
func (t *Tree) Wait(record func(*os.ProcessState, error)) {
	awaitEnd(t.root.Pid)
	record(t.root.Wait())
	close(t.ended)
	t.set.own.remove(t.root)
	t.set.reaper.kick()
}

// Ended returns a channel that is closed when Wait has recorded the end of the root process.
func (t *Tree) Ended() <-chan struct{} { return t.ended }

// Running reports whether the root process has not ended yet.
func (t *Tree) Running() bool {
	select {
	case <-t.ended:
		return false
	default:
		return true
	}
}

// OOMKilled reports whether the kernel has killed something of the tree for want of memory, as far as the tree's cgroup tells.
func (t *Tree) OOMKilled() bool { return t.group.oomKilled() }

// Remove removes the fence of a tree that has nothing left, or was never started.
func (t *Tree) Remove() {
	t.group.remove()
	t.set.reaper.kick()
}

// awaitEnd waits until the process can be waited for. It does so in the runtime's poller, because a thread that blocks in waitid
// costs some 40 KB for each task, its kernel stack included. Where the kernel can't (before 5.10) it returns at once.
func awaitEnd(pid int) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK) // our child, not reaped yet: the number is still its own
	if err != nil {
		return
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool { // an error means that it can't be polled
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		return n > 0 || err != nil && err != unix.EINTR
	})
}
