// Package tty makes pseudo-terminals, and calls on the descriptors of terminals without changing how their files block.
package tty

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Open makes a pseudo-terminal, pty(7): its master, which is in the runtime's poller, and the side for a program.
func Open() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0) // close-on-exec
	if err != nil {
		return nil, nil, err
	}
	if slave, err = openSlave(master); err != nil {
		master.Close()
		return nil, nil, err
	}
	return master, slave, nil
}

// openSlave opens a terminal's other side, not by its name where the kernel can: the name may be another's in this
// mount namespace. Linux before 4.13 can't.
func openSlave(master *os.File) (slave *os.File, err error) {
	failed := Control(master, func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return os.NewSyscallError("unlock the terminal", err)
		}
		number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
		if err != nil {
			return os.NewSyscallError("number of the terminal", err)
		}
		name := "/dev/pts/" + strconv.Itoa(number)
		peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER,
			unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
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

// IsTerminal reports whether a file is a terminal.
func IsTerminal(f *os.File) bool {
	return Control(f, func(fd int) error {
		_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	}) == nil
}

// Size returns a terminal's size, and zeros for a file that is no terminal.
func Size(f *os.File) (rows, columns uint16) {
	_ = Control(f, func(fd int) error { // a terminal that does not know has none, either
		size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err == nil {
			rows, columns = size.Row, size.Col
		}
		return err
	})
	return rows, columns
}

// Resize gives a terminal another size.
func Resize(f *os.File, rows, columns uint16) error {
	return Control(f, func(fd int) error {
		return os.NewSyscallError("resize the terminal",
			unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}))
	})
}

// Control calls do with a file's descriptor, which stays as it is: File.Fd would make it a blocking one.
func Control(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if raw.Control(func(fd uintptr) { failed = do(int(fd)) }) != nil { // its error for a closed file is nobody's
		return os.ErrClosed
	}
	return failed
}
