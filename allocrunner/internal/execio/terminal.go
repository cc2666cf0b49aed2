package execio

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/internal/tty"
)

// aMomentAgo is a deadline that has passed.
var aMomentAgo = time.Unix(1, 0)

// firstSize is a terminal's until it gets another: programs that start with one of 0 by 0 lay out nothing, or divide by
// it.
var firstSize = unix.Winsize{Row: 24, Col: 80}

// openTerminal makes a pseudo-terminal, pty(7). Its master is all of our ends.
func (f *Files) openTerminal() (child []*os.File, err error) {
	master, slave, err := tty.Open()
	if err != nil {
		return nil, err
	}
	child = []*os.File{slave}
	defer func() {
		if err != nil {
			closeAll(child)
			master.Close()
		}
	}()
	for range 2 {
		fd, err := unix.FcntlInt(slave.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return child, os.NewSyscallError("fcntl", err)
		}
		child = append(child, os.NewFile(uintptr(fd), slave.Name()))
	}
	f.terminal = master
	f.Stdin = &Input{file: master, terminal: true}
	f.Stdout, f.Stderr = &Output{master, f.ended}, &Output{nil, f.ended}
	return child, f.Resize(firstSize.Row, firstSize.Col)
}

// Resize gives the terminal another size. It does nothing to pipes.
func (f *Files) Resize(rows, columns uint16) error {
	if f.terminal == nil {
		return nil
	}
	return tty.Resize(f.terminal, rows, columns)
}

// endOfFile returns the terminal's character for the end of a file, Ctrl-D if nobody has set another.
func endOfFile(terminal *os.File) []byte {
	end := []byte{4}
	_ = tty.Control(terminal, func(fd int) error { // a closed one takes no character
		t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err == nil && t.Cc[unix.VEOF] != 0 { // 0: there is none
			end[0] = t.Cc[unix.VEOF]
		}
		return err
	})
	return end
}
