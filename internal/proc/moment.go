package proc

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Moment is a point in the life of the machine, as the processes of one PID namespace see it.
type Moment struct {
	Space string // the PID namespace, in which alone a number means something; empty when unknown
	Forks uint64 // how many processes and threads the machine had started; 0 when unknown
}

// Now returns the present.
func Now() Moment {
	var m Moment
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

// Reused reports whether a process number that was in use at the moment m may have been given to another by now. The kernel gives
// them in turn, so that takes as many starts as there are numbers; half is a margin for those in use, which are left out, and for starts
// that failed, which are not counted.
func (m Moment) Reused(now Moment) bool {
	text, _ := os.ReadFile("/proc/sys/kernel/pid_max")
	most, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return m.Space == "" || m.Space != now.Space || m.Forks == 0 || now.Forks < m.Forks || now.Forks-m.Forks >= most/2
}
