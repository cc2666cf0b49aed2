package variables

import (
	"sync"

	"golang.org/x/sys/unix"
)

// bootClock is the clock of a Moment, clock_gettime(3): unlike that of the same name on Linux it goes on while the
// machine is suspended.
const bootClock = unix.CLOCK_MONOTONIC

// bootID returns the kernel's name for this start of the machine.
var bootID = sync.OnceValues(func() (string, error) { return unix.Sysctl("kern.bootsessionuuid") })
