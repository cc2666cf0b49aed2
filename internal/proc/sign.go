package proc

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Undumpable keeps the memory of this process, which may hold keys and tokens, out of core dumps and from other
// processes of its user. A program that the process executes is dumpable again.
func Undumpable() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }

// Sign is a bit that every process of the machine can read: whether this process holds a lock, which /proc/locks shows.
// The zero value is ready to use, and not set. It is not safe for concurrent use.
type Sign struct{ file *os.File }

// Set makes HasSign true of this process. A process has at most one Sign that is set.
func (m *Sign) Set() error {
	if m.file != nil {
		return nil
	}
	fd, err := unix.MemfdCreate("sign", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "sign")
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: 1}
	if err := unix.FcntlFlock(file.Fd(), unix.F_SETLK, &lock); err != nil {
		file.Close()
		return os.NewSyscallError("fcntl", err)
	}
	m.file = file
	return nil
}

// Clear makes HasSign false.
func (m *Sign) Clear() {
	if m.file != nil {
		m.file.Close() // with the lock
		m.file = nil
	}
}

// HasSign reports whether a process has a Sign that is set: a POSIX lock. A line of /proc/locks is, per proc_locks(5),
//
//	1: POSIX  ADVISORY  WRITE 32334 00:01:1234 0 0
func HasSign(pid int) bool {
	table, err := os.ReadFile("/proc/locks")
	if err != nil {
		return false
	}
	number := []byte(strconv.Itoa(pid))
	for line := range bytes.Lines(table) {
		if f := bytes.Fields(line); len(f) == 8 && string(f[1]) == "POSIX" && bytes.Equal(f[4], number) {
			return true
		}
	}
	return false
}
