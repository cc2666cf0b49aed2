package proc

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Identity names a process for good: a number may be used again, and a start time means nothing after a reboot.
type Identity struct {
	PID   int
	Start uint64 // clock ticks after boot
	Boot  string // the kernel's random ID of this boot
}

// Identify finds the identity of a running process. The error is os.ErrNotExist when there is none.
func Identify(pid int) (Identity, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	s, err := Read(pid)
	if err == nil && s.Dead || errors.Is(err, unix.ESRCH) {
		err = os.ErrNotExist
	}
	if err != nil {
		return Identity{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	return Identity{PID: pid, Start: s.Start, Boot: string(boot[:max(0, len(boot)-1)])}, nil
}

// Runs reports whether that very process still runs.
func (id Identity) Runs() bool {
	now, err := Identify(id.PID)
	return err == nil && now == id
}

// Await waits for the process's end, at most so long. It reports whether it has ended.
func (id Identity) Await(most time.Duration) bool {
	fd, err := unix.PidfdOpen(id.PID, 0)
	if err != nil {
		return !id.Runs()
	}
	defer unix.Close(fd)
	for deadline := time.Now().Add(most); id.Runs(); {
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1) // a signal only brings another look
	}
	return true
}

// Stat returns the identity as Signal and Kill take it. Of an earlier boot nothing runs, which Runs says.
func (id Identity) Stat() Stat { return Stat{PID: id.PID, Start: id.Start} }
