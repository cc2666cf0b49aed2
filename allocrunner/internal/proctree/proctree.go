// Package proctree confines, finds, kills and reaps trees of processes. A tree is a process that this program starts,
// its root process, and all of its descendants, whatever they do to their parents, sessions and process groups. The
// program starts no other children, so every process that it inherits belongs to a tree. The package promises that
//   - a Kill without an error has left no process of the tree. With cgroups, no process escapes. Without them, a
//     process that has left its session, has lost its parent and was started with another environment is found with
//     the last task;
//   - no other process is killed: neither another program's, nor one that has got the number of a dead one;
//   - dead processes are reaped;
//   - processes that a killed supervisor has left behind are found by the next one.
//
// It does not decide when to start or kill a process, and does not handle what processes read and write.
package proctree

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"taskapi/internal/proc"
	"taskapi/internal/wake"
)

// Config configures a Trees.
type Config struct {
	// NoCgroup leaves cgroups alone: trees are found by descent and session only.
	NoCgroup bool

	// Name is part of the cgroup's name, by which orphans are found; empty: it has a number alone.
	Name string
}

// Trees are the trees whose root processes this program starts. All methods are safe for concurrent use.
type Trees struct {
	own      *ownSet
	reaper   *reaper
	cgroups  *cgroups
	children func(pid int) ([]int, error) // proc.Children
}

// New makes a Trees. It does no I/O and starts nothing.
func New(cfg Config) *Trees {
	own := &ownSet{pids: map[int]*os.Process{}}
	return &Trees{
		own:      own,
		reaper:   &reaper{own: own, wake: wake.New()},
		cgroups:  &cgroups{off: cfg.NoCgroup, name: cfg.Name},
		children: proc.Children,
	}
}

// Run reaps the orphans that this program inherits, until quit is closed.
func (s *Trees) Run(quit <-chan struct{}) { s.reaper.run(quit) }

// CgroupDir returns the cgroup that holds those of all tasks, empty while there is none.
func (s *Trees) CgroupDir() string { return s.cgroups.dirName() }

// Close removes the cgroups. All trees must be empty before.
func (s *Trees) Close() { s.cgroups.close() }

// Task makes the fence for a run of the task. Its name must be fit for a file. marker is an entry of the root process's
// environment that only the task's processes have. By it, Kill finds processes that have left their parents, session
// and cgroup. It may be empty.
func (s *Trees) Task(task, marker string, limits Limits) *Tree {
	t := &Tree{set: s, marker: marker, ended: make(chan struct{})}
	t.group, t.noCgroup = s.cgroups.add(task, limits != Limits{})
	t.bounds, t.unlimited = s.cgroups.bound(task, limits, t.group)
	return t
}

// Tree is one tree. Its methods may be called at any time once Start has returned.
type Tree struct {
	set        *Trees
	group      cgroup      // empty: there is none
	noCgroup   error       // why
	bounds     []cgroup    // of version 1, with the task's limits
	unlimited  error       // why there are none
	beside     bool        // bounds are another tree's
	marker     string      // an environment entry that the descendants share, or empty
	root       *os.Process // set by Start
	startTicks uint64      // when that was started, in clock ticks after boot; 0 when unknown
	ended      chan struct{}
}

// ExecChild makes the tree of a program that runs beside the root process. With cgroups, its cgroup is inside the
// task's, so that it can be killed alone and ends with the task.
func (t *Tree) ExecChild(name string) *Tree {
	b := &Tree{set: t.set, noCgroup: t.noCgroup, bounds: t.bounds, beside: true, ended: make(chan struct{})}
	if t.group != "" {
		b.group, b.noCgroup = t.group.below(name)
	}
	return b
}

// Place is where a root process is made.
type Place struct {
	Cgroup *os.File   // the open directory of its cgroup of version 2; nil for none
	Tasks  []*os.File // the open files tasks of its cgroups of version 1, in which the process writes a 0
}

// Start has fork make the root process in a place. fork is called again without a cgroup if the kernel does not allow
// that, and has the process lead a session of its own. If Start fails, only Remove may be called. No other process can
// be started or reaped meanwhile.
func (t *Tree) Start(fork func(Place) (*os.Process, error)) (*os.Process, error) {
	// This program inherits orphans then. Before Linux 5.4, PID 1 does.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	var err error
	if t.root, err = t.fenced(fork); err != nil {
		return nil, err
	}
	s, _ := proc.Read(t.root.Pid) // it exists, if only as a zombie: nobody has waited for it
	t.startTicks = s.Start
	return t.root, nil
}

// StartTicks returns when the root process was started, in clock ticks after boot, as a proc.Identity has it; 0 when
// unknown.
func (t *Tree) StartTicks() uint64 { return t.startTicks }

// NoCgroup returns why the root process has no cgroup of its own; nil if it has one.
func (t *Tree) NoCgroup() error { return t.noCgroup }

// Unlimited returns why the limits are not enforced; nil if they are.
func (t *Tree) Unlimited() error { return t.unlimited }

// fenced starts the process, in the tree's cgroups if that is possible.
func (t *Tree) fenced(fork func(Place) (*os.Process, error)) (*os.Process, error) {
	var place Place
	for _, g := range t.bounds {
		// The kernel moves the one thread of a new process without the lock that cgroup.procs takes, for which it may
		// wait 10 ms.
		tasks, err := os.OpenFile(g.file("tasks"), os.O_WRONLY, 0)
		if err != nil {
			return nil, err
		}
		defer tasks.Close()
		place.Tasks = append(place.Tasks, tasks)
	}
	start := func(cgroup *os.File) (*os.Process, error) {
		place.Cgroup = cgroup
		return t.set.own.start(func() (*os.Process, error) { return fork(place) })
	}
	if t.group == "" {
		return start(nil)
	}
	dir, err := os.OpenFile(string(t.group), os.O_RDONLY|unix.O_DIRECTORY, 0) // for clone3
	if err == nil {
		var root *os.Process
		root, err = start(dir)
		dir.Close()
		if err == nil {
			return root, nil
		}
	}
	for _, full := range []error{unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE} { // not the cgroup's fault
		if errors.Is(err, full) {
			return nil, err
		}
	}
	t.group.remove()
	t.group, t.noCgroup = "", err
	if len(t.bounds) == 0 {
		t.unlimited = err
	}
	return start(nil)
}

// Wait waits for the end of the root process and calls record with it. Nothing else may wait for it. When record has
// returned, the process counts as ended.
func (t *Tree) Wait(record func(*os.ProcessState, error)) {
	awaitEnd(t.root.Pid)
	record(t.root.Wait())
	close(t.ended)
	t.set.own.remove(t.root)
	t.set.reaper.wake.Send()
}

// Has reports whether a process belongs to the tree, or did; known is false if nothing is known of a process that has
// gone. It looks only at that process and those above it.
func (t *Tree) Has(pid int) (has, known bool) {
	if pid == t.root.Pid {
		return true, true
	}
	first, err := proc.Read(pid)
	if err != nil {
		return false, false
	}
	for at, steps := first, 0; steps < maxDepth; steps++ {
		if at.PID == t.root.Pid || at.Session == t.root.Pid {
			return true, true
		}
		if at, err = proc.Read(at.Parent); err != nil {
			break
		}
	}
	return t.group != "" && slices.Contains(PIDsBelow(string(t.group)), pid) ||
		t.marker != "" && proc.HasEnv(pid, t.marker), !first.Dead
}

// maxDepth bounds how many processes above another one are looked at.
const maxDepth = 100

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

// OOMKilled reports whether the kernel has killed a process of the tree because memory ran out. Only a tree's cgroup
// knows that.
func (t *Tree) OOMKilled() bool {
	return t.group.oomKilled() || slices.ContainsFunc(t.bounds, cgroup.oomKilled)
}

// Remove removes the cgroups of a tree that is empty, or was never started.
func (t *Tree) Remove() {
	t.group.remove()
	for _, g := range t.bounds {
		if !t.beside {
			g.remove()
		}
	}
	t.set.reaper.wake.Send()
}

// awaitEnd waits until the process can be waited for. It uses the runtime's poller: a thread that blocks in waitid
// costs some 40 KB for each task, with its kernel stack. Before Linux 5.10 it returns at once.
func awaitEnd(pid int) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK) // our child is not reaped yet, so it has its number
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
