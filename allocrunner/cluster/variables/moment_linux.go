package variables

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// bootClock is the clock of a Moment, clock_gettime(2).
const bootClock = unix.CLOCK_BOOTTIME

// readBootID returns the kernel's name for this start of the machine, random(4).
func readBootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}
