package interfaces

import (
	"errors"
	"io"
)

// ErrTooManyExecs means that as many programs run beside an allocation's tasks as may at a time.
var ErrTooManyExecs = errors.New("too many commands run in the allocation's tasks")

// ExecError is a program that can't be run beside a task. The reason is for the one who wants it, and says what would
// be right.
type ExecError struct {
	Reason string
	Err    error // the cause; may be nil
}

func (e *ExecError) Error() string { return e.Reason }
func (e *ExecError) Unwrap() error { return e.Err }

// ExecRequest is a program to run beside a task's process.
type ExecRequest struct {
	Task    string
	Command []string // the program, looked up as the task's own is, and its arguments; not empty

	// TTY gives the program a terminal of its own, of 24 lines and 80 columns. Term is the terminal's type, for a task
	// whose environment has no TERM; empty: "xterm".
	TTY  bool
	Term string
}

// ExecSession is a program that runs beside a task's process. Its methods may be called from several goroutines. The
// caller closes it.
type ExecSession interface {
	// Stdin is the program's standard input. A write waits while the program does not read, and fails when it has
	// closed its input or has ended. Close is the end of the file; a program with a terminal gets the terminal's
	// character for that.
	Stdin() io.WriteCloser

	// Stdout and Stderr are the program's output. A read waits for some; io.EOF comes when the program has closed it,
	// or has ended and all that it has written has been read. Output that nobody reads makes the program wait. On a
	// terminal everything is Stdout.
	Stdout() io.Reader
	Stderr() io.Reader

	// Resize gives the program's terminal another size, of which the program gets a SIGWINCH. It does nothing without a
	// terminal.
	Resize(rows, columns uint16) error

	// Wait returns how the program ended, when nothing of it is left: what it has left in the background is killed.
	// Errors: ErrTaskNotRunning when the program ended with the task, ErrDetached when it did with the runner, others
	// when nobody knows.
	Wait() (ExitResult, error)

	// Close closes the program's input and output, and a terminal hangs up. What of it still runs after a second is
	// killed. It returns when nothing of it is left.
	Close() error
}
