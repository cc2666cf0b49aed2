// Package polltest waits for what tells a test nothing when it changes: another process's files, or a counter. It says
// how long a test waits at most. Only tests may import it.
package polltest

import (
	"fmt"
	"os"
	"runtime"
	"time"
)

// shortest is for what takes milliseconds on a machine that has time; longest leaves a package's tests time to print
// a failure.
const (
	shortest = 4 * time.Minute
	longest  = 10 * time.Minute
)

// Deadline returns how long a test waits before it gives up: four minutes, and on a busy machine as many times as long
// as there are processes that want each CPU, up to ten minutes. It is no promise of the program's.
func Deadline() time.Duration {
	loads, _ := os.ReadFile("/proc/loadavg") // without it, the machine is taken for idle
	return deadline(string(loads), runtime.NumCPU())
}

func deadline(loads string, cpus int) time.Duration {
	var minute float64
	_, _ = fmt.Sscan(loads, &minute) // stays 0
	return min(time.Duration(float64(shortest)*max(1, minute/float64(cpus))), longest)
}

// Until looks again and again until a condition holds, after pauses that grow to 20 milliseconds. It returns false
// after the Deadline, which grows with the load while it waits.
func Until(holds func() bool) bool {
	began, next, most := time.Now(), time.Now(), time.Duration(0)
	for pause := time.Millisecond; !holds(); pause = min(2*pause, 20*time.Millisecond) {
		if now := time.Now(); now.After(next) {
			next, most = now.Add(time.Second), max(most, Deadline())
		}
		if time.Since(began) > most {
			return false
		}
		time.Sleep(pause)
	}
	return true
}
