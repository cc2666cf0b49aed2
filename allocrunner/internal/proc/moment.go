package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// tickTime is the unit of a process's start time: USER_HZ is 100 wherever Go runs on Linux.
const tickTime = 10_000_000 // ns

// Moment is a point in the life of the machine, as the processes of one PID namespace see it.
type Moment struct {
	Space string // the PID namespace, in which alone a number means something; empty when it can't be told
	Ticks uint64 // after boot, as the start of a process is given
	Forks uint64 // how many processes and threads the machine had started; 0 when it can't be told
}

// Now is the present.
func Now() Moment {
	var m Moment
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) == nil {
		m.Ticks = uint64(ts.Nano()) / tickTime
	}
	// The name is used again once the namespace is gone, and its first process lives as long as it does.
	name, err := os.Readlink("/proc/self/ns/pid")
	if init, e := Read(1); err == nil && e == nil {
		m.Space = fmt.Sprintf("%s %d", name, init.Start)
	}
	text, _ := os.ReadFile("/proc/stat")
	for line := range strings.Lines(string(text)) {
		if count, ok := strings.CutPrefix(line, "processes "); ok {
			m.Forks, _ = strconv.ParseUint(strings.TrimSpace(count), 10, 64) // stays zero, then
		}
	}
	return m
}

// In reports whether numbers mean the same at both moments, for all that is known of them.
func (m Moment) In(other Moment) bool { return m.Space != "" && m.Space == other.Space }

// Turned reports whether a process number that was in use at the moment m may have been given to another by now. The kernel gives
// them in turn, so that takes as many starts as there are numbers; half is a margin for those in use, which are left out, and for starts
// that failed, which are not counted.
func (m Moment) Turned(now Moment) bool {
	text, _ := os.ReadFile("/proc/sys/kernel/pid_max")
	most, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return !m.In(now) || m.Forks == 0 || now.Forks < m.Forks || now.Forks-m.Forks >= most/2
}
