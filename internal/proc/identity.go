package proc

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Identity identifies a process for all time. Its number alone may be used again, and its start time says nothing after
// a reboot.
type Identity struct {
	PID   int
	Start uint64 // clock ticks after boot
	Boot  string // the kernel's random ID of this boot
}

// Identify finds the identity of a running process. The error is os.ErrNotExist when there is none.
func Identify(pid int) (Identity, error) {
	boot, err := BootID()
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
	return Identity{PID: pid, Start: s.Start, Boot: boot}, nil
}

// BootID returns the kernel's random ID of this start of the machine, which no process outlives.
var BootID = sync.OnceValues(func() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(boot)), err
})

// Runs reports whether the process still runs. Of a Hidden process, only the number and the boot are compared.
func (id Identity) Runs() bool {
	now, err := Identify(id.PID)
	if err == nil {
		return now == id
	}
	boot, err := BootID()
	return err == nil && boot == id.Boot && Hidden(id.PID)
}

// Hidden reports whether a process of this user runs but /proc does not show it. A process that is not dumpable is
// hidden from programs that are not root if /proc is mounted with hidepid.
func Hidden(pid int) bool {
	if _, err := Read(pid); err == nil || errors.Is(err, unix.ESRCH) {
		return false
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	ended, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && ended == 0 && unix.PidfdSendSignal(fd, 0, nil, 0) == nil
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
		// A signal only brings another look.
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
	}
	return true
}

// Signal sends a signal to the process. It is no error when it has ended.
func (id Identity) Signal(sig unix.Signal) error { return signal(id.PID, sig, id.Runs) }
