package interfaces

import (
	"errors"
	"io"
)

// ErrTooManyExecs means that no more programs may run beside an allocation's tasks at a time.
var ErrTooManyExecs = errors.New("too many commands run in the allocation's tasks")

// ExecError says that a program can't be run beside a task. The reason is for the caller, and says what would be right.
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

	// Interpolate replaces ${name} in the command by values of the task's environment and the node, as in the job file.
	Interpolate bool

	// TTY gives the program a terminal of its own, of 24 lines and 80 columns. Term is the terminal's type, for a task
	// whose environment has no TERM; empty: "xterm".
	TTY  bool
	Term string
}

// ExecSession is a program that runs beside a task's process. Its methods may be called from several goroutines. The
// caller closes it.
type ExecSession interface {
	// Stdin is the program's standard input. A write waits while the program does not read, and fails once the program
	// has closed its input or has ended. Close sends the end of the file, on a terminal as the terminal's character for
	// it.
	Stdin() io.WriteCloser

	// Stdout and Stderr are the program's output. A read waits for output. It returns io.EOF when the program has
	// closed the file, or has ended and all of its output has been read. If nobody reads, the program waits. On a
	// terminal everything is Stdout.
	Stdout() io.Reader
	Stderr() io.Reader

	// Resize gives the program's terminal another size, of which the program gets a SIGWINCH. It does nothing without a
	// terminal.
	Resize(rows, columns uint16) error

	// Wait returns the program's result when none of its processes is left; processes in the background are killed.
	// Errors: ErrTaskNotRunning if the program ended with the task, ErrDetached if it ended with the runner, others if
	// its result is unknown.
	Wait() (ExitResult, error)

	// Close closes the program's input and output; a terminal hangs up. Processes that still run after a second are
	// killed. Close returns when none is left.
	Close() error
}
