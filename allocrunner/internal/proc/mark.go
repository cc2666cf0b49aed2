package proc

import (
	"bytes"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Undumpable keeps the memory of this process, keys and tokens among it, from core dumps and from other processes of its user. What it
// executes is dumpable again.
func Undumpable() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }

// Mark is something that a process says of itself, and that every process of the machine can see: a lock, in /proc/locks. Its zero value
// is ready, and says nothing.
type Mark struct {
	mu   sync.Mutex // guards file
	file *os.File
}

// Set makes HasMark true of this process. A process has at most one Mark that is set.
func (m *Mark) Set() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file != nil {
		return nil
	}
	fd, err := unix.MemfdCreate("mark", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "mark")
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: 1}
	if err := unix.FcntlFlock(file.Fd(), unix.F_SETLK, &lock); err != nil {
		file.Close()
		return os.NewSyscallError("fcntl", err)
	}
	m.file = file
	return nil
}

// Clear makes HasMark false.
func (m *Mark) Clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.file != nil {
		m.file.Close() // with the lock
		m.file = nil
	}
}

// HasMark reports whether a process has a Mark that is set: a POSIX lock. A line of /proc/locks is, per proc_locks(5),
//
//	1: POSIX  ADVISORY  WRITE 32334 00:01:1234 0 0
func HasMark(pid int) bool {
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
