// Package launch is the first program of every process that a driver starts: this same binary, which becomes the task's
// user, enters the working directory and only then executes the task's program. Both can hang for as long as a file
// system likes, or the holder of a lease on the program. Then that process alone hangs, and can be killed; the program
// that started it goes on.
//
// A program that imports this package needs to do nothing for that: when it is executed under the name Name, the
// initialization of package become does all there is to do. If that fails, this package's says why, and ends the
// process.
package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/launch/become"
)

// How the binary is to be executed. The file of New's Child is its descriptor FD.
const (
	Exe  = "/proc/self/exe" // also when its file has been replaced by an upgrade meanwhile
	Name = become.Name
	FD   = become.FD
)

// Env returns the environment until the program has its own: one thread at work, and no collection for a few
// milliseconds.
func Env() []string { return []string{"GOMAXPROCS=1", "GOGC=off"} }

// Program is what the process becomes, and User the user that it becomes.
type (
	Program = become.Program
	User    = become.User
)

// Error is why the program could not be executed. Its text is for people.
type Error struct {
	Reason string
	Errno  unix.Errno
}

func (e *Error) Error() string { return e.Reason }
func (e *Error) Unwrap() error { return e.Errno }

// Launch is the connection to a process that is about to become a program.
type Launch struct {
	conn  *os.File
	Child *os.File // for the process
}

// New makes the connection for one process. Close ends it in any case.
func New() (*Launch, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, os.NewSyscallError("fcntl", err)
	}
	return &Launch{conn: os.NewFile(uintptr(fds[0]), "launch"), Child: os.NewFile(uintptr(fds[1]), "launch")}, nil
}

// Close ends the connection. A process that does not know by then what to become ends.
func (l *Launch) Close() {
	l.conn.Close()
	l.Child.Close()
}

// maxReason bounds what is read of a process that may have become somebody else's.
const maxReason = 16 << 10

// Become tells the process, which has been started, what to become, and returns when it is that. Errors: *Error, ctx's,
// or that the process has ended before.
func (l *Launch) Become(ctx context.Context, p Program) error {
	l.Child.Close()
	raw, err := l.conn.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = l.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := l.conn.Write(p.Pack(os.Getpid())); err == nil { // else the answer says why, or there is none
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
	text, err := io.ReadAll(io.LimitReader(l.conn, maxReason))
	if errors.Is(err, os.ErrDeadlineExceeded) { // it may have come as far all the same
		_ = raw.Control(func(fd uintptr) { text, err = readPending(int(fd), text) })
	}
	switch {
	case err == nil && string(text) == become.About:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	errno, reason, failed := strings.Cut(strings.TrimPrefix(string(text), become.About), "\x00")
	if n, bad := strconv.Atoi(errno); failed && bad == nil {
		return &Error{Reason: reason, Errno: unix.Errno(n)}
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
