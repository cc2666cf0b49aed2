// Package boottime reads the clock that counts since the start of the machine, also while the machine sleeps. All
// processes of a machine see the same time, and nobody can set it.
package boottime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now returns the time since the start of the machine.
func Now() time.Duration {
	var now unix.Timespec
	if unix.ClockGettime(clock, &now) != nil { // no kernel that has the clock fails to read it
		return 0
	}
	return time.Duration(now.Nano())
}
