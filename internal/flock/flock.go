// Package flock takes the locks of flock(2), which can't be waited for with a time limit, with one.
package flock

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// ErrLocked: another open file has had the lock for longer than the caller waits.
var ErrLocked = errors.New("locked by another process")

// interval is how often a lock is tried: it is mostly held for a few file operations.
const interval = 5 * time.Millisecond

// Lock takes the lock of an open file, for it alone (unix.LOCK_EX) or shared with others (unix.LOCK_SH), and waits for it at most so long. The
// lock ends with the last descriptor of that open file. Errors: ErrLocked, flock(2)'s.
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
