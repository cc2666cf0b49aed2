package processes

import (
	"math"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/launch"
	"taskapi/allocrunner/internal/proctree"
)

// runStarter starts all processes from one thread of its own, since the parent-death signal fires when the thread that
// forked ends. So all running processes get SIGKILL when quit is closed.
func (l *Local) runStarter() {
	runtime.LockOSThread() // not unlocked: the thread ends with this goroutine
	for {
		select {
		case call := <-l.calls:
			call()
		case <-l.quit:
			return
		}
	}
}

// startProcess forks the process, as the root of the tree.
func (l *Local) startProcess(tree *proctree.Tree, process *launch.Launch) (proc *os.Process, err error) {
	done := make(chan struct{})
	call := func() {
		defer close(done)
		CloseOnExec()
		proc, err = tree.Start(func(at proctree.Place) (*os.Process, error) {
			return process.Fork(at.Cgroup, at.Tasks...)
		})
	}
	select {
	case l.calls <- call:
		<-done
		return proc, err
	case <-l.quit:
		return nil, drivers.ErrClosed
	}
}

// program returns the program for the process to execute, with its standard files.
func program(s drivers.Spec, files []*os.File, tty bool) launch.Program {
	p := launch.Program{Path: s.Path, Args: append([]string{s.Path}, s.Args...), Env: s.Env, Dir: s.Dir,
		Name: s.User.Name, Files: [3]*os.File(files), TTY: tty, OOMScoreAdj: s.OOMScoreAdj,
		NetBindService: s.NetBindService}
	if needsUser(s.User) {
		p.User = &launch.User{UID: s.User.UID, GID: s.User.GID, Groups: s.User.Groups}
	}
	return p
}

// needsUser reports whether the task's user differs from ours. A nameless zero user is "as we are".
func needsUser(u interfaces.User) bool {
	if u.Name == "" && u.UID == 0 && u.GID == 0 && len(u.Groups) == 0 {
		return false
	}
	return int(u.UID) != os.Geteuid() || int(u.GID) != os.Getegid()
}

// CloseOnExec sets the flag on descriptors that this program has inherited without it, so that no program that it
// starts gets them. Its own descriptors have the flag already.
func CloseOnExec() {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	// Linux before 5.11.
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}
