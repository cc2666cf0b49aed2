package launch

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// init is the process's whole life in this program. It comes before the initialization of most other packages, which
// would take as long again.
func init() {
	if len(os.Args) > 0 && os.Args[0] == Name {
		become()
		os.Exit(126) // as a shell says of what it can't execute
	}
}

// become becomes the program. It returns only when it can't.
func become() {
	runtime.LockOSThread() // the user and the parent's death belong to the thread that executes the program
	syscall.CloseOnExec(FD)
	var text []byte
	for {
		buf := make([]byte, 64<<10)
		n, err := unix.Read(FD, buf)
		if err == unix.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			break
		}
		text = append(text, buf[:n]...)
	}
	p, parent, ok := unpack(text)
	if !ok {
		return // who started us is gone, or has given up
	}
	err := p.enter(parent)
	if err == nil {
		inheritNothing()
		say(about)
		err = syscall.Exec(p.Path, p.Args, p.Env) // with the limits that this program's own start has raised set back
		err = explain(p, err)
	}
	if e, ok := errors.AsType[*Error](err); ok {
		say(strconv.Itoa(int(e.Errno)) + "\x00" + e.Reason)
	}
}

// umask is what every program begins with, whatever this one was started with.
const umask = 0o022

// inheritNothing sets the file mode mask, unblocks all signals, and gives each its default action. Those that Go
// catches get it by the execution, but those that were ignored at the start of the keeper (by nohup, or a shell's
// background job) would stay ignored: Go leaves SIGHUP and SIGINT so, and lets nobody set the signals 32 to 34 of the C
// library.
func inheritNothing() {
	unix.Umask(umask)
	var none unix.Sigset_t
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &none, nil) // can't fail with these arguments
	// struct sigaction of the kernel on 64-bit machines: SIG_DFL is 0, as are its flags and mask
	var action [4]uint64
	for sig := range uintptr(lastSignal) {
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig+1, uintptr(unsafe.Pointer(&action)), 0,
			unsafe.Sizeof(action[3]), 0, 0)
	}
}

// lastSignal is the highest number of a signal.
const lastSignal = 64

func say(text string) { _, _ = unix.Write(FD, []byte(text)) } // nobody listens, then

// enter does all but the execution. The error is an *Error.
func (p Program) enter(parent int) error {
	if u := p.User; u != nil {
		if errno := u.become(); errno != 0 {
			return &Error{Reason: notPermitted(p), Errno: errno}
		}
	}
	// The change of the user has cleared it.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return explain(p, err)
	}
	if unix.Getppid() != parent {
		_ = unix.Kill(unix.Getpid(), unix.SIGKILL) // it died before the call above
	}
	if err := unix.Chdir(p.Dir); err != nil {
		return explainDir(p, err)
	}
	return nil
}

// become changes this thread alone, which is all that the program will have.
func (u *User) become() unix.Errno {
	var groups unsafe.Pointer
	if len(u.Groups) > 0 {
		groups = unsafe.Pointer(&u.Groups[0])
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(u.Groups)), uintptr(groups), 0); errno != 0 {
		return errno
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGID, uintptr(u.GID), 0, 0); errno != 0 {
		return errno
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SETUID, uintptr(u.UID), 0, 0)
	return errno
}
