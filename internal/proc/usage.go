package proc

import (
	"os"
	"strconv"
	"time"

	"taskapi/internal/boottime"
)

// CPUTime is time on CPUs.
type CPUTime struct{ User, System time.Duration }

// Sum returns user and system time together.
func (t CPUTime) Sum() time.Duration { return t.User + t.System }

// Add returns t and u together.
func (t CPUTime) Add(u CPUTime) CPUTime { return CPUTime{t.User + u.User, t.System + u.System} }

// Since returns how much t is more than u, the user and the system time each at least 0.
func (t CPUTime) Since(u CPUTime) CPUTime {
	return CPUTime{max(0, t.User-u.User), max(0, t.System-u.System)}
}

// tick is the unit of time in /proc: USER_HZ is 100 wherever Go runs on Linux.
const tick = 10 * time.Millisecond

// pageSize is the unit of memory in /proc/PID/stat.
var pageSize = uint64(os.Getpagesize())

// Swap returns how many bytes of a process's memory are swapped out; 0 when there is no such process.
func Swap(pid int) uint64 { return Bytes(Value("/proc/"+strconv.Itoa(pid)+"/status", "VmSwap")) }

// UptimeTicks returns the present time in the unit of Stat.Start.
func UptimeTicks() uint64 { return uint64(boottime.Now() / tick) }

// Age returns how long ago the process was started; now is the present in UptimeTicks.
func (s Stat) Age(now uint64) time.Duration {
	if now <= s.Start {
		return 0
	}
	return time.Duration(now-s.Start) * tick
}
