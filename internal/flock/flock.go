// Package flock takes locks of flock(2) with a time limit, which flock(2) itself does not have.
package flock

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLocked means that another open file had the lock for longer than the caller waits.
var ErrLocked = errors.New("locked by another process")

// interval is the pause between two attempts. A lock is mostly held for a few file operations.
const interval = 5 * time.Millisecond

// Lock takes the lock of an open file, exclusive (unix.LOCK_EX) or shared (unix.LOCK_SH), and waits for it at most that
// long. The lock ends when the last descriptor of the open file is closed. Errors: ErrLocked, those of flock(2).
func Lock(fd, how int, most time.Duration) error {
	for deadline := time.Now().Add(most); ; time.Sleep(interval) {
		err := unix.Flock(fd, how|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EWOULDBLOCK):
			return err
		case !time.Now().Before(deadline):
			return ErrLocked
		}
	}
}
