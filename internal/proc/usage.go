package proc

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is what a process has used of the machine, beside what tells it from others.
type Usage struct {
	Stat
	CPU      CPUTime // its threads', the dead ones included
	Children CPUTime // its dead children's and theirs, as far as each was waited for
	RSS      uint64  // bytes; pages that processes share count for each
	Threads  int
}

// CPUTime is time on CPUs.
type CPUTime struct{ User, System time.Duration }

// Sum returns user and system time together.
func (t CPUTime) Sum() time.Duration { return t.User + t.System }

// Add returns t and u together.
func (t CPUTime) Add(u CPUTime) CPUTime { return CPUTime{t.User + u.User, t.System + u.System} }

// Since returns what has been added since u. A part that has shrunk has had nothing added.
func (t CPUTime) Since(u CPUTime) CPUTime {
	return CPUTime{max(0, t.User-u.User), max(0, t.System-u.System)}
}

// tick is the unit of time in /proc: USER_HZ is 100 wherever Go runs on Linux.
const tick = 10 * time.Millisecond

// pageSize is the unit of memory in /proc/PID/stat.
var pageSize = uint64(os.Getpagesize())

// ReadUsage reads what one process has used. The error is ENOENT or ESRCH when there is none.
func ReadUsage(pid int) (Usage, error) {
	var buf [statSize]byte
	text, err := readStat(pid, &buf)
	if err != nil {
		return Usage{}, err
	}
	return parseUsage(pid, text)
}

func parseUsage(pid int, text string) (Usage, error) {
	fields, err := statFields(pid, text, 22)
	if err != nil {
		return Usage{}, err
	}
	stat, err := statOf(pid, fields)
	if err != nil {
		return Usage{}, err
	}
	number := func(field int) uint64 { // numbered as in the manual; statOf has shown that the line is one of numbers
		n, _ := strconv.ParseUint(fields[field-3], 10, 64)
		return n
	}
	ticks := func(field int) time.Duration { return time.Duration(number(field)) * tick }
	return Usage{
		Stat:     stat,
		CPU:      CPUTime{ticks(14), ticks(15)},
		Children: CPUTime{ticks(16), ticks(17)},
		RSS:      number(24) * pageSize,
		Threads:  int(number(20)),
	}, nil
}

// AllUsage reads what all processes have used that this program can see, by number.
func AllUsage() (map[int]Usage, error) {
	pids, err := PIDs()
	if err != nil {
		return nil, err
	}
	all := make(map[int]Usage, len(pids))
	for _, pid := range pids {
		if u, err := ReadUsage(pid); err == nil {
			all[pid] = u
		}
	}
	return all, nil
}

// Swap returns how many bytes of a process's memory are swapped out; 0 for nobody.
func Swap(pid int) uint64 {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmSwap:"); ok {
			kilobytes, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64) // stays zero
			return kilobytes << 10
		}
	}
	return 0
}

// UptimeTicks returns the present as Stat.Start has it; 0 when the kernel does not say.
func UptimeTicks() uint64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return 0
	}
	return uint64(time.Duration(now.Nano()) / tick)
}

// Age returns how long ago the process was started, when now is UptimeTicks.
func (s Stat) Age(now uint64) time.Duration {
	if now <= s.Start {
		return 0
	}
	return time.Duration(now-s.Start) * tick
}
