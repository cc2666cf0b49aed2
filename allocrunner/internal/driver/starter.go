package driver

import (
	"math"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/proctree"
)

// taskUmask is what every task begins with, whatever this program was started with.
const taskUmask = 0o022

// command is what the starter needs to know to start a process.
type command struct {
	spec  Spec
	files []*os.File
	tree  *proctree.Tree
}

// starter starts all processes from one thread, kept for that alone, because what a child inherits or is bound to belongs to the
// thread: the umask (unshared from the rest of the program), the signal mask, and the parent-death signal, which fires when
// the thread that forked ends.
type starter struct {
	calls chan func()
	quit  <-chan struct{} // its closing ends the thread: whatever was started and still runs gets SIGKILL
	// swallow keeps signals that were ignored when this program began from being ignored in tasks: a caught signal is set
	// back to its default by exec, an ignored one is not.
	swallow chan os.Signal
}

func newStarter(quit <-chan struct{}) *starter {
	return &starter{calls: make(chan func()), quit: quit, swallow: make(chan os.Signal, 1)}
}

func (s *starter) run() {
	// Not unlocked: the thread ends with this goroutine, for no other may have what is changed here.
	runtime.LockOSThread()
	s.prepare()
	defer signal.Stop(s.swallow)
	for {
		select {
		case call := <-s.calls:
			call()
		case <-s.quit:
			return
		}
	}
}

// prepare sets what children inherit. Without CLONE_FS unshared, the umask would be changed under the whole program: then it is
// left alone.
func (s *starter) prepare() {
	if unix.Unshare(unix.CLONE_FS) == nil {
		unix.Umask(taskUmask)
	}
	var none unix.Sigset_t
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &none, nil) // can't fail with these arguments
}

// start starts the process.
func (s *starter) start(c command) (proc *os.Process, err error) {
	done := make(chan struct{})
	call := func() {
		defer close(done)
		CloseOnExec()
		s.unignore()
		dumpable, dumpErr := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
		proc, err = c.start()
		if dumpErr == nil && dumpable == 0 && needsUser(c.spec.User) {
			// The child has changed its user while it shared our memory, which is the kernel's reason to change that.
			_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
		}
	}
	select {
	case s.calls <- call:
		<-done
		return proc, err
	case <-s.quit:
		return nil, ErrClosed
	}
}

// start starts the process from the thread that it is called on.
func (c command) start() (*os.Process, error) {
	attr := &os.ProcAttr{Dir: c.spec.Dir, Env: append([]string{}, c.spec.Env...), Files: c.files}
	attr.Sys = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: credential(c.spec.User)}
	return c.tree.Start(c.spec.Path, append([]string{c.spec.Path}, c.spec.Args...), attr)
}

// credential is whom to become; nil is who we are.
func credential(u interfaces.User) *syscall.Credential {
	if !needsUser(u) {
		return nil
	}
	return &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
}

// needsUser reports whether the task's user differs from ours. A nameless zero user is "as we are".
func needsUser(u interfaces.User) bool {
	if u.Name == "" && u.UID == 0 && u.GID == 0 && len(u.Groups) == 0 {
		return false
	}
	return int(u.UID) != os.Geteuid() || int(u.GID) != os.Getegid()
}

// CloseOnExec keeps descriptors that were handed to this program, without the flag, from reaching a program that it starts. Its own
// have the flag already.
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
