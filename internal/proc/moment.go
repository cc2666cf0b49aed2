package proc

import (
	"fmt"
	"os"
)

// Moment is a point in time, measured by how many processes the machine has started.
type Moment struct {
	Space string // the PID namespace, in which process numbers are valid; empty when unknown
	Forks uint64 // how many processes and threads the machine had started; 0 when unknown
}

// Now returns the present.
func Now() Moment {
	var m Moment
	// The name may be used again once the namespace is gone. Its first process lives as long as the namespace does.
	name, err := os.Readlink("/proc/self/ns/pid")
	if init, e := Read(1); err == nil && e == nil {
		m.Space = fmt.Sprintf("%s %d", name, init.Start)
	}
	numbers, _ := Numbers("/proc/stat")
	m.Forks = numbers["processes"]
	return m
}

// Reused reports whether a process number that was in use at the moment m may belong to another process now. The kernel
// hands out the numbers in turn, so that takes as many starts as there are numbers. Half as many is the limit here: it
// leaves a margin for the numbers in use, which the kernel skips, and for starts that failed, which it does not count.
func (m Moment) Reused(now Moment) bool {
	most, _ := Number("/proc/sys/kernel/pid_max")
	return m.Space == "" || m.Space != now.Space || m.Forks == 0 || now.Forks < m.Forks || now.Forks-m.Forks >= most/2
}
