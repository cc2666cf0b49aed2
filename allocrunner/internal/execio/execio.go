// Package execio makes the standard files of a program that runs beside a task: three pipes, or a terminal. One end is
// the program's, the other this program's. It promises that a read ends when no more output can come, even if an
// escaped process still holds the program's end; that all output from before the program's end is read; and that no
// descriptor is left after Close. It starts nothing.
package execio

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"taskapi/internal/tty"
)

// Files are this program's ends. Make them with Open, and Close them. The methods may be called from several
// goroutines.
type Files struct {
	Stdin  *Input
	Stdout *Output
	Stderr *Output // of a terminal: always at its end

	terminal *os.File // nil: pipes
	ended    chan struct{}
	end      sync.Once
}

// Open returns this program's ends, and the three files that become the program's standard input, output and error,
// which the caller closes. With tty they are a terminal of 24 lines and 80 columns.
func Open(tty bool) (*Files, []*os.File, error) {
	f := &Files{ended: make(chan struct{})}
	open := f.openPipes
	if tty {
		open = f.openTerminal
	}
	files, err := open()
	if err != nil {
		return nil, nil, fmt.Errorf("files for the program: %w", err)
	}
	return f, files, nil
}

func (f *Files) openPipes() (child []*os.File, err error) {
	var ours []*os.File
	for _, name := range []string{"stdin", "stdout", "stderr"} {
		mine, its, err := os.Pipe()
		if err != nil {
			closeAll(ours)
			closeAll(child)
			return nil, err
		}
		if name == "stdin" {
			mine, its = its, mine
		}
		its.Fd() // makes it block, as most programs need it
		ours, child = append(ours, mine), append(child, its)
	}
	f.Stdin = &Input{file: ours[0]}
	f.Stdout, f.Stderr = &Output{ours[1], f.ended}, &Output{ours[2], f.ended}
	return child, nil
}

// End says that the program has ended: the outputs then return only the output that is still unread.
func (f *Files) End() {
	f.end.Do(func() {
		close(f.ended)
		f.Stdout.wake()
		f.Stderr.wake()
	})
}

// Close closes everything. On a terminal the program gets a SIGHUP.
func (f *Files) Close() error {
	f.End()
	err := f.Stdin.hangUp()
	for _, out := range []*Output{f.Stdout, f.Stderr} {
		if out.file != nil {
			err = errors.Join(err, closed(out.file.Close()))
		}
	}
	return err
}

// closed is the error of closing a file that may be closed already.
func closed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// Output is this program's end of the program's output.
type Output struct {
	file  *os.File // nil: nothing comes
	ended <-chan struct{}
}

var _ io.Reader = (*Output)(nil)

// Read waits for output. io.EOF comes when nobody has the other end any more, or when the program has ended and there
// is nothing left.
func (o *Output) Read(p []byte) (int, error) {
	if o.file == nil {
		return 0, io.EOF
	}
	for {
		select {
		case <-o.ended:
			return o.rest(p)
		default:
		}
		n, err := o.file.Read(p)
		if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
			continue // woken
		}
		return n, readError(err)
	}
}

// wake makes a read that waits look again.
func (o *Output) wake() {
	if o.file != nil {
		_ = o.file.SetReadDeadline(aMomentAgo) // fails when it is closed, and then nobody waits
	}
}

// rest reads the available output without waiting.
func (o *Output) rest(p []byte) (n int, err error) {
	err = tty.Control(o.file, func(fd int) (err error) {
		// a terminal's driver delivers first what is on its way
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, 0); err != nil && err != unix.EINTR {
			return err
		}
		for {
			if n, err = unix.Read(fd, p); err != unix.EINTR {
				return err
			}
		}
	})
	if errors.Is(err, unix.EAGAIN) || err == nil && n <= 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return max(n, 0), readError(err)
}

// readError returns io.EOF for a terminal that nobody has any more, and for a file that Close has closed.
func readError(err error) error {
	if errors.Is(err, unix.EIO) || errors.Is(err, os.ErrClosed) {
		return io.EOF
	}
	return err
}

// Input is this program's end of the program's input.
type Input struct {
	file     *os.File
	terminal bool

	mu      sync.Mutex // guards the fields below; held over a write, so that the end of the input comes after it
	closed  bool
	midLine bool // what was written last did not end a line
}

var _ io.WriteCloser = (*Input)(nil)

// Write waits until the program has room. The error is that the program reads no more, or that the input is closed.
func (i *Input) Write(p []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return 0, os.ErrClosed
	}
	if len(p) > 0 {
		i.midLine = p[len(p)-1] != '\n' && p[len(p)-1] != '\r'
	}
	return i.file.Write(p)
}

// Close is the end of the input. It waits for a write that is under way. A terminal stays open, and the program reads
// the end of a file.
func (i *Input) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return nil
	}
	i.closed = true
	if !i.terminal {
		return closed(i.file.Close())
	}
	end := endOfFile(i.file)
	if i.midLine { // the first one only sends the line that has begun
		end = append(end, end...)
	}
	_, err := i.file.Write(end)
	return closed(err)
}

// hangUp closes the file at once, also under a write, which fails then.
func (i *Input) hangUp() error { return closed(i.file.Close()) }
