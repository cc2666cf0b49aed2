// Package proctree fences, finds, kills and reaps trees of processes. A tree is a process that this program starts, its first one, and all
// that comes of it, whatever that does to its parents, sessions and process groups. It promises that
//   - a Kill without an error has left nothing of the tree. With cgroups nothing gets out of one. Without them, what has left its session
//     and lost its parent is found only where this program is the parent of tasks alone;
//   - nobody else is killed: neither another's process, nor one that has got the number of a dead one since;
//   - the dead are collected, and nobody else's child is: an exit code goes to who waits for it;
//   - what a program that was itself killed has left of its trees is found by another one.
//
// It does not say when to start or kill anything, and has no part in what processes read and write.
package proctree

import (
	"errors"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/proc"
)

// Config is what a Trees is made of.
type Config struct {
	// Logger is required.
	Logger *slog.Logger

	// Sole says that this program starts no children but those of trees. Then every orphan that it inherits is of one of them: all are
	// reaped, and all are killed with the last task. Otherwise only those are that a Kill has met, for the rest may be somebody else's.
	Sole bool

	// NoCgroup leaves cgroups alone: trees are found by descent and session only.
	NoCgroup bool

	// Name is part of the cgroup's name, by which Clues find it; empty: it has a number alone.
	Name string
}

// Trees are the trees whose first processes this program starts. All methods are safe for concurrent use.
type Trees struct {
	sole    bool
	own     *ownSet
	reaper  *reaper
	cgroups *cgroups
}

// New makes a Trees. It does no I/O and starts nothing.
func New(cfg Config) *Trees {
	own := newOwnSet()
	return &Trees{sole: cfg.Sole, own: own, reaper: newReaper(own, cfg.Sole), cgroups: newCgroups(cfg.NoCgroup, cfg.Name, cfg.Logger)}
}

// Run reaps the orphans that this program inherits, until quit is closed.
func (s *Trees) Run(quit <-chan struct{}) { s.reaper.run(quit) }

// CgroupDir is the cgroup that holds those of all tasks, empty while there is none.
func (s *Trees) CgroupDir() string { return s.cgroups.dirName() }

// Close removes the cgroups. No tree has anything left by then.
func (s *Trees) Close() { s.cgroups.close() }

// Task makes the fence for a run of the task. Its name must be fit for a file. An entry of the first process's environment that only the
// task's processes have is its mark, by which a sole parent finds what has left everything else behind; it may be empty.
func (s *Trees) Task(task, mark string) *Tree {
	group, lack := s.cgroups.add(task)
	return &Tree{set: s, group: group, lack: lack, mark: mark, ended: make(chan struct{})}
}

// Tree is one tree. Its methods may be called at any time once Start has returned.
type Tree struct {
	set   *Trees
	group *cgroup     // nil: there is none
	lack  error       // why
	mark  string      // an environment entry that the descendants share, or empty
	first *os.Process // set by Start
	born  uint64      // when that was started, in clock ticks after boot; 0 when it can't be told
	ended chan struct{}
}

// Beside makes the fence for a program beside the task: inside the task's where there are cgroups, so that it can be killed alone and goes
// with the task.
func (t *Tree) Beside(name string) *Tree {
	b := &Tree{set: t.set, lack: t.lack, ended: make(chan struct{})}
	if t.group.works() {
		b.group, b.lack = t.group.below(name)
	}
	return b
}

// Start starts the first process, in its cgroup or, where the kernel does not allow that, outside, and in a session of its own. attr.Sys
// must be set and is changed. When it fails, there is only Remove to be called. Others can't start or be reaped until the program is executed:
// it must not be one whose file system may hang.
func (t *Tree) Start(path string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
	// Orphans come to this program then. Linux before 5.4 lacks it, and they go to PID 1.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	attr.Sys.Setsid = true
	start := func() (*os.Process, error) { return os.StartProcess(path, argv, attr) }
	var err error
	if t.first, err = t.fenced(attr, func() (*os.Process, error) { return t.set.own.start(start) }); err != nil {
		return nil, err
	}
	s, _ := proc.Read(t.first.Pid) // there, if only as a zombie: nobody has waited for it
	t.born = s.Start
	return t.first, nil
}

// Born is when the first process was started, in clock ticks after boot, as a proc.Identity has it; 0 when it can't be told.
func (t *Tree) Born() uint64 { return t.born }

// Unfenced is why the first process runs in no cgroup of its own, nil when it does.
func (t *Tree) Unfenced() error { return t.lack }

// fenced starts the process in the tree's cgroup if that can be.
func (t *Tree) fenced(attr *os.ProcAttr, start func() (*os.Process, error)) (*os.Process, error) {
	if t.group.works() {
		first, err := t.startInside(attr, start)
		for _, full := range []error{unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE} { // no fault of the cgroup's
			if errors.Is(err, full) {
				return nil, err
			}
		}
		if err == nil {
			t.set.cgroups.note(nil)
			return first, nil
		}
		t.group.remove()
		t.group, t.lack = nil, err
	}
	first, err := start()
	if err == nil {
		t.set.cgroups.note(t.lack)
	}
	return first, err
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

// Wait waits for the end of the first process, which nobody else may wait for, and calls note with it. When that has returned, the process
// counts as ended.
func (t *Tree) Wait(note func(*os.ProcessState, error)) {
	awaitEnd(t.first.Pid)
	note(t.first.Wait())
	close(t.ended)
	t.set.own.remove(t.first)
	t.set.reaper.kick()
}

// Ended is closed when Wait has noted the end of the first process.
func (t *Tree) Ended() <-chan struct{} { return t.ended }

// Running reports whether the first process has not ended yet.
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
