// Package become is what the first program of a process does, see package launch: it becomes the task's user, enters the
// working directory and executes the task's program, all in its init function.
//
// A process that is executed for each start, exec and script check shall not initialize the whole of taskapi before. Go
// initializes packages in the order of their import paths, each as soon as the packages are initialized that it imports.
// So this package imports only packages that need no other but the runtime, above all neither fmt, strings nor
// golang.org/x/sys/unix, which wait for the tables of package unicode: it comes before nearly all others, and ends the
// process, or replaces its program, before they begin. A test of the program holds that. When something fails, init
// returns, and the initialization goes on to package launch, which explains the failure and ends the process.
package become

import (
	"errors"
	"os"
	"syscall"
	"unsafe"
)

// How the process is started.
const (
	Name = "taskapi-start" // its argument 0
	FD   = 3               // the connection to the process that started it, over which a packed Program comes
)

// About is what the process says when it is about to execute the program. The connection's end is all that follows, or
// what went wrong.
const About = "+"

// ExitCode is that of a process which can't become its program, as a shell says of what it can't execute.
const ExitCode = 126

// Failure is what has failed.
type Failure struct {
	Program
	Step  Step
	Errno syscall.Errno
}

// Step is a step on the way to the program.
type Step int

const (
	ChangeUser Step = iota
	TieToParent
	EnterDir
	Execute
)

// Failed is why this process could not become its program; nil in any other process.
var Failed *Failure

// init runs on the process's first thread, as all init functions do: the user and the signal at the parent's death are
// those of the thread that executes the program.
func init() {
	if len(os.Args) == 0 || os.Args[0] != Name {
		return
	}
	syscall.CloseOnExec(FD)
	p, parent, ok := unpack(string(readAll(FD)))
	if !ok {
		os.Exit(ExitCode) // who started us is gone, or has given up
	}
	step, errno := p.become(parent)
	Failed = &Failure{p, step, errno}
}

// readAll reads to the end, or until an error.
func readAll(fd int) []byte {
	text := make([]byte, 0, 8<<10)
	for {
		n, err := syscall.Read(fd, text[len(text):cap(text)])
		if err == syscall.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			return text
		}
		if text = text[:len(text)+n]; len(text) == cap(text) {
			text = append(text, 0)[:len(text)] // with more room
		}
	}
}

// become becomes the program. It returns only when it can't.
func (p Program) become(parent int) (Step, syscall.Errno) {
	if p.User != nil {
		if errno := p.User.become(); errno != 0 {
			return ChangeUser, errno
		}
	}
	// The change of the user has cleared it.
	_, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0)
	if errno != 0 {
		return TieToParent, errno
	}
	if syscall.Getppid() != parent {
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL) // it died before the call above
	}
	if err := syscall.Chdir(p.Dir); err != nil {
		return EnterDir, errnoOf(err)
	}
	inheritNothing()
	_, _ = syscall.Write(FD, []byte(About)) // nobody listens, then
	// with the limits that this program's own start has raised set back
	return Execute, errnoOf(syscall.Exec(p.Path, p.Args, p.Env))
}

func errnoOf(err error) syscall.Errno {
	errno, _ := errors.AsType[syscall.Errno](err)
	return errno
}

// umask is what every program begins with, whatever this one was started with.
const umask = 0o022

// inheritNothing sets the file mode mask, unblocks all signals, and gives each its default action. Those that Go
// catches get it by the execution, but those that were ignored at the start of the keeper (by nohup, or a shell's
// background job) would stay ignored: Go leaves SIGHUP and SIGINT so, and lets nobody set the signals 32 to 34 of the C
// library.
func inheritNothing() {
	const setMask = 2 // SIG_SETMASK
	syscall.Umask(umask)
	var none uint64 // the kernel's set of signals
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, setMask, uintptr(unsafe.Pointer(&none)), 0,
		unsafe.Sizeof(none), 0, 0)
	// struct sigaction of the kernel on 64-bit machines: SIG_DFL is 0, as are its flags and mask
	var action [4]uint64
	for sig := range uintptr(lastSignal) {
		_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, sig+1, uintptr(unsafe.Pointer(&action)), 0,
			unsafe.Sizeof(action[3]), 0, 0)
	}
}

// lastSignal is the highest number of a signal.
const lastSignal = 64

// become changes this thread alone, which is all that the program will have.
func (u *User) become() syscall.Errno {
	var groups unsafe.Pointer
	if len(u.Groups) > 0 {
		groups = unsafe.Pointer(&u.Groups[0])
	}
	_, _, errno := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(u.Groups)), uintptr(groups), 0)
	if errno == 0 {
		_, _, errno = syscall.RawSyscall(syscall.SYS_SETGID, uintptr(u.GID), 0, 0)
	}
	if errno == 0 {
		_, _, errno = syscall.RawSyscall(syscall.SYS_SETUID, uintptr(u.UID), 0, 0)
	}
	return errno
}
