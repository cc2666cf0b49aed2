package allocdir

import (
	"errors"

	"golang.org/x/sys/unix"
)

// ErrKilled is the error of a step that a test prevents.
var ErrKilled = errors.New("killed")

// KillAfter prevents all renames of sticky data but the first ones, until restore.
func KillAfter(steps int) (restore func()) {
	rename = func(fromFD int, from string, toFD int, to string, flags uint) error {
		if steps--; steps < 0 {
			return ErrKilled
		}
		return unix.Renameat2(fromFD, from, toFD, to, flags)
	}
	return func() { rename = unix.Renameat2 }
}
