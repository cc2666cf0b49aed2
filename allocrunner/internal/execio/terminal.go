package execio

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// aMomentAgo is a deadline that has passed.
var aMomentAgo = time.Unix(1, 0)

// firstSize is a terminal's until it gets another: programs that start with one of 0 by 0 lay out nothing, or divide by it.
var firstSize = unix.Winsize{Row: 24, Col: 80}

// openTerminal makes a pseudo-terminal, pty(7). Its master is all of our ends.
func (f *Files) openTerminal() (child []*os.File, err error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0) // close-on-exec, and in the runtime's poller
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			closeAll(child)
			master.Close()
		}
	}()
	slave, err := openSlave(master)
	if err != nil {
		return nil, err
	}
	child = []*os.File{slave}
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

// openSlave opens a terminal's other side, not by its name where the kernel can: the name may be another's in this mount namespace. Linux
// before 4.13 can't.
func openSlave(master *os.File) (slave *os.File, err error) {
	failed := control(master, func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return os.NewSyscallError("unlock the terminal", err)
		}
		number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
		if err != nil {
			return os.NewSyscallError("number of the terminal", err)
		}
		name := "/dev/pts/" + strconv.Itoa(number)
		peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
		if errno == 0 {
			slave = os.NewFile(peer, name)
			return nil
		}
		slaveFD, err := unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: name, Err: err}
		}
		slave = os.NewFile(uintptr(slaveFD), name)
		return nil
	})
	return slave, failed
}

// Resize gives the terminal another size. It does nothing to pipes.
func (f *Files) Resize(rows, columns uint16) error {
	if f.terminal == nil {
		return nil
	}
	return control(f.terminal, func(fd int) error {
		return os.NewSyscallError("resize the terminal", unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}))
	})
}

// endOfFile returns the terminal's character for the end of a file, Ctrl-D if nobody has set another.
func endOfFile(terminal *os.File) []byte {
	end := []byte{4}
	_ = control(terminal, func(fd int) error { // a closed one takes no character
		t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err == nil && t.Cc[unix.VEOF] != 0 { // 0: there is none
			end[0] = t.Cc[unix.VEOF]
		}
		return err
	})
	return end
}

// control calls f with a file's descriptor, which stays as it is: File.Fd would make it a blocking one.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if raw.Control(func(fd uintptr) { failed = f(int(fd)) }) != nil { // its error for a closed file is nobody's
		return os.ErrClosed
	}
	return failed
}
