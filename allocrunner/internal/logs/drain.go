package logs

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// bufferSize is what a pipe holds by default: one read empties it.
const bufferSize = 64 << 10

// retryInterval is how often a full disk is tried again while the task is silent.
const retryInterval = time.Second

// lastReads limits what is read after Cut: 1 MiB, the most that an unprivileged process can make a pipe hold. A writer
// that never stops can't delay the reader longer.
const lastReads = (1 << 20) / bufferSize

// buffers are used only while there is something to read, so that idle streams need none.
var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// Sink receives what a Drain reads. Its methods wait for nothing but the disk.
type Sink interface {
	// Write writes p or drops it. It does not keep p.
	Write(p []byte)
	// Behind reports whether the sink has dropped output that its file does not mention yet. Retry mentions it, if
	// there is room.
	Behind() bool
	Retry()
	Close() error
}

// Drain copies a pipe to a Sink until the last writer has closed it or Cut is called, and then closes both.
type Drain struct {
	pipe *os.File
	to   Sink
	cut  atomic.Bool
	done chan struct{}
}

// StartDrain starts a drain. The pipe is the reading end, in non-blocking mode. Drain owns both from now on.
func StartDrain(pipe *os.File, to Sink) *Drain {
	d := &Drain{pipe: pipe, to: to, done: make(chan struct{})}
	go d.run()
	return d
}

// Done returns a channel that is closed when everything has been written and both ends are closed.
func (d *Drain) Done() <-chan struct{} { return d.done }

// Cut ends the drain: the present content of the pipe is still written, later output is not. A process that writes to
// the pipe afterwards gets SIGPIPE.
func (d *Drain) Cut() {
	d.cut.Store(true)
	// An error means that the pipe is closed already.
	_ = d.pipe.SetReadDeadline(time.Unix(1, 0))
}

func (d *Drain) run() {
	defer close(d.done)
	defer d.to.Close()
	defer d.pipe.Close()
	raw, err := d.pipe.SyscallConn()
	if err != nil {
		return
	}
	for armed := false; ; {
		armed = d.arm(armed)
		if d.cut.Load() {
			_ = raw.Control(func(fd uintptr) { // copies what is in the pipe, without waiting
				for range lastReads {
					if n, err := d.take(int(fd)); n <= 0 || err != nil {
						return
					}
				}
			})
			return
		}
		err := d.copyOnce(raw.Read)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			d.to.Retry()
		case err != nil:
			return
		}
	}
}

// arm sets the deadline of the next wait: retryInterval while the sink is behind, else none. It is called before cut is
// read, and Cut sets its deadline after the flag, so the deadline of a Cut is never overwritten unnoticed.
func (d *Drain) arm(armed bool) bool {
	switch {
	case d.to.Behind():
		_ = d.pipe.SetReadDeadline(time.Now().Add(retryInterval))
		return true
	case armed:
		_ = d.pipe.SetReadDeadline(time.Time{})
	}
	return false
}

// copyOnce waits for output and copies one buffer of it. It returns io.EOF at the end.
func (d *Drain) copyOnce(read func(func(uintptr) bool) error) error {
	var n int
	var err error
	waitErr := read(func(fd uintptr) bool {
		n, err = d.take(int(fd))
		return !errors.Is(err, unix.EAGAIN)
	})
	switch {
	case waitErr != nil:
		return waitErr
	case err != nil:
		return err
	case n == 0:
		return io.EOF
	}
	return nil
}

// take moves one buffer from the pipe to the files.
func (d *Drain) take(fd int) (int, error) {
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	for {
		n, err := unix.Read(fd, buf[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n > 0 {
			d.to.Write(buf[:n])
		}
		return n, err
	}
}
