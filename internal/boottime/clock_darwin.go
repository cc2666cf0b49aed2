package boottime

import "golang.org/x/sys/unix"

// clock is unlike that of the same name on Linux: it goes on while the machine is suspended.
const clock = unix.CLOCK_MONOTONIC
