// Package launch starts the processes of tasks: each is forked, becomes the task's user, enters the working directory
// and only then executes the task's program. A file system, or the holder of a lease on the program, can make both
// hang. Then only that process hangs, and can be killed; the program that started it goes on.
//
// A process that can't execute its program says why, in words. If it must read files for that, as the task's user, it
// executes this binary under the name Name, whose initialization does the work.
package launch

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// How the process executes this binary to explain a failure.
const (
	exe      = "/proc/self/exe" // also when its file has been replaced by an upgrade meanwhile
	Name     = "taskapi-explain"
	exitCode = 126 // as a shell's for a program that it can't execute
)

// connFD is the process's end of the connection, after the three standard files, of a program without Listen.
const connFD = 3

// about is the message that the process sends just before it executes the program. After it comes only the connection's
// end, or a step, an errno and perhaps an explanation.
const about = '+'

// Program is the program that the process executes. None of its strings has a NUL byte.
type Program struct {
	Path string   // absolute
	Args []string // with the program's own name
	Env  []string
	Dir  string // absolute
	User *User  // nil: as we are
	Name string // the user's, for messages

	Files       [3]*os.File // standard input, output and error; each has its own number, 0 to 2, or a greater one
	TTY         bool        // Files[0] becomes its controlling terminal
	OOMScoreAdj int         // 0: ours unless it is negative, as when the kernel refuses to lower it

	// Listen are at most MaxListen sockets, which the program finds at descriptor 3 and up, and in blocking mode. The
	// entry PIDEnv of Env gets the process's number.
	Listen []*os.File

	// NetBindService gives the program of a user other than root CAP_NET_BIND_SERVICE as an ambient capability, so its
	// children have it, too, and set-user-ID programs have not. Where that is refused, the program runs without it.
	NetBindService bool
}

// PIDEnv is a variable whose value is the number of the process (sd_listen_fds(3)). Of a program without Listen it
// stays empty.
const PIDEnv = "LISTEN_PID="

// MaxListen is how many sockets a program can get.
const MaxListen = 64

// User is the user that the process becomes.
type User struct {
	UID, GID uint32
	Groups   []uint32
}

// Error is why the program could not be executed. Its text is for people.
type Error struct {
	Reason string
	Errno  unix.Errno
}

func (e *Error) Error() string { return e.Reason }
func (e *Error) Unwrap() error { return e.Errno }

// Launch is a process that will execute a program, or will be forked for that, and the connection to it.
type Launch struct {
	program   Program
	process   *child
	conn, its *os.File
	raised    []*os.File // Program.Listen, with greater numbers
}

// New prepares a process. Close must be called in any case.
func New(p Program) (*Launch, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	l := &Launch{program: p, its: os.NewFile(uintptr(fds[1]), "launch")}
	if err = unix.SetNonblock(fds[0], true); err == nil {
		err = l.raise()
	}
	if err == nil {
		l.process, err = newChild(l.program, l.its)
	}
	l.conn = os.NewFile(uintptr(fds[0]), "launch") // only now, so that it can be waited for
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// raise gives the sockets and the connection numbers above those that the process gives them, so that none takes the
// number of one that still has to be moved.
func (l *Launch) raise() error {
	n := len(l.program.Listen)
	if n > MaxListen {
		return fmt.Errorf("%d sockets are more than %d", n, MaxListen)
	}
	if n == 0 {
		return nil
	}
	above := func(f *os.File) (*os.File, error) {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, connFD+n+1)
		if err != nil {
			return nil, os.NewSyscallError("fcntl", err)
		}
		return os.NewFile(uintptr(fd), f.Name()), nil
	}
	its, err := above(l.its)
	if err != nil {
		return err
	}
	l.its.Close()
	l.its = its
	for _, f := range l.program.Listen {
		raised, err := above(f)
		if err != nil {
			return err
		}
		l.raised = append(l.raised, raised)
		if err := unix.SetNonblock(int(raised.Fd()), false); err != nil { // the earlier program's mode stays otherwise
			return os.NewSyscallError("fcntl", err)
		}
	}
	l.program.Listen = l.raised
	return nil
}

// Close ends the connection, and drops what a process says from then on.
func (l *Launch) Close() {
	l.conn.Close()
	l.its.Close()
	for _, f := range l.raised {
		f.Close()
	}
}

// maxReason bounds the bytes that are read from the process, which may not be under control any more.
const maxReason = 16 << 10

// Await returns when the forked process has executed the program. Errors: *Error, ctx's, or that the process has ended
// before.
func (l *Launch) Await(ctx context.Context) error {
	l.its.Close()
	raw, err := l.conn.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = l.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	text, err := io.ReadAll(io.LimitReader(l.conn, maxReason))
	if errors.Is(err, os.ErrDeadlineExceeded) { // it may have executed the program all the same
		_ = raw.Control(func(fd uintptr) { text, err = readPending(int(fd), text) })
	}
	failure, isAbout := bytes.CutPrefix(text, []byte{about})
	switch {
	case err == nil && isAbout && len(failure) == 0:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case len(failure) >= 2:
		at, errno := step(failure[0]), unix.Errno(failure[1])
		return &Error{Reason: cmp.Or(string(failure[2:]), explain(l.program, at, errno)), Errno: errno}
	}
	return fmt.Errorf("the process ended before it could execute the program (%w)", cmp.Or(err, io.ErrUnexpectedEOF))
}

// readPending reads what is there without waiting, after text. The error is nil at the connection's end.
func readPending(fd int, text []byte) ([]byte, error) {
	buf := make([]byte, maxReason)
	for len(text) < maxReason {
		n, err := unix.Read(fd, buf)
		if n <= 0 || err != nil {
			return text, err
		}
		text = append(text, buf[:n]...)
	}
	return text, nil
}
