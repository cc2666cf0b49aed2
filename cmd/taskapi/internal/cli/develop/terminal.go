package develop

import (
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/charmbracelet/x/term"
	"golang.org/x/sys/unix"

	"taskapi/internal/tty"
)

// devTerminal is a terminal for the command, which behaves like this program's terminal. The command needs its own,
// since a terminal belongs to one session, and a task has a session of its own.
type devTerminal struct {
	real   *os.File // this program's
	master *os.File
	slave  *os.File // the command's
	shows  bool     // output of the command goes there

	before   *term.State // of real; nil while it is not raw
	copied   sync.WaitGroup
	closing  sync.Once
	starting sync.Once
}

// newDevTerminal makes one with the settings and the size of real.
func newDevTerminal(real *os.File) (*devTerminal, error) {
	master, slave, err := tty.Open()
	if err != nil {
		return nil, err
	}
	t := &devTerminal{real: real, master: master, slave: slave}
	if settings, err := unix.IoctlGetTermios(int(real.Fd()), unix.TCGETS); err == nil {
		_ = unix.IoctlSetTermios(int(t.slave.Fd()), unix.TCSETS, settings) // it has defaults otherwise
	}
	t.resize()
	return t, nil
}

// resize gives it the size of this program's terminal.
func (t *devTerminal) resize() {
	rows, columns := tty.Size(t.real)
	_ = tty.Resize(t.master, rows, columns) // it keeps the size that it has
}

// begin copies everything in both directions, key by key.
func (t *devTerminal) begin() {
	if t == nil {
		return
	}
	t.starting.Do(func() {
		ignored := make(chan os.Signal, 1) // this program may be in the background of its terminal
		signal.Notify(ignored, syscall.SIGTTOU)
		t.before, _ = term.MakeRaw(t.real.Fd())
		signal.Stop(ignored)
		t.resize()
		go func() { _, _ = io.Copy(t.master, t.real) }() // ends with this program
		t.copied.Go(func() { _, _ = io.Copy(t.real, t.master) })
	})
}

// close shows what the command has written, and gives the terminal back.
func (t *devTerminal) close() {
	if t == nil {
		return
	}
	t.closing.Do(func() {
		t.slave.Close() // the command's processes have ended, so reading ends with their last output
		t.copied.Wait()
		t.master.Close()
		if t.before != nil {
			_ = term.Restore(t.real.Fd(), t.before) // it may be gone, and then there is nothing to restore
		}
	})
}
