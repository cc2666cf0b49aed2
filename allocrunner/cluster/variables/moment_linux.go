package variables

import (
	"golang.org/x/sys/unix"

	"taskapi/internal/proc"
)

// bootClock is the clock of a Moment, clock_gettime(2).
const bootClock = unix.CLOCK_BOOTTIME

// bootID returns the kernel's name for this start of the machine.
var bootID = proc.BootID
