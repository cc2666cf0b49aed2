package stats

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"taskapi/internal/proc"
)

// cgroup2 is a cgroup of version 2. Its CPU time needs no controller; throttling needs that of CPUs, and memory its own.
type cgroup2 struct{ dir string }

// cpu reads cpu.stat: user_usec, system_usec and, with the controller, nr_throttled and throttled_usec.
func (g cgroup2) cpu() (cpuReading, error) {
	stat, err := readPairs(g.dir, "cpu.stat")
	if err != nil {
		return cpuReading{}, err
	}
	user, ok1 := stat["user_usec"]
	system, ok2 := stat["system_usec"]
	if !ok1 || !ok2 {
		return cpuReading{}, fmt.Errorf("%s/cpu.stat has no times", g.dir)
	}
	r := cpuReading{CPUTime: proc.CPUTime{User: microseconds(user), System: microseconds(system)}}
	if periods, ok := stat["nr_throttled"]; ok {
		r.throttled = &throttling{periods, microseconds(stat["throttled_usec"])}
	}
	return r, nil
}

// memory reads memory.current, memory.stat and, where they are, memory.swap.current and memory.peak (Linux 5.19).
func (g cgroup2) memory() (memoryReading, error) {
	usage, err := readNumber(g.dir, "memory.current")
	if err != nil {
		return memoryReading{}, err
	}
	stat, err := readPairs(g.dir, "memory.stat")
	if err != nil {
		return memoryReading{}, err
	}
	return memoryReading{
		usage: &usage, rss: of(stat, "anon"), cache: of(stat, "file"), kernel: of(stat, "kernel"),
		swap: perhaps(g.dir, "memory.swap.current"), maxUsage: perhaps(g.dir, "memory.peak"),
	}, nil
}

func microseconds(n uint64) time.Duration { return time.Duration(n) * time.Microsecond }

// readPairs reads a file of lines with a name and a number.
func readPairs(dir, name string) (map[string]uint64, error) {
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	pairs := map[string]uint64{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			pairs[key] = n
		}
	}
	return pairs, nil
}

// readNumber reads a file of one number.
func readNumber(dir, name string) (uint64, error) {
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
}

// perhaps returns the number of a file that may be missing, nil then.
func perhaps(dir, name string) *uint64 {
	n, err := readNumber(dir, name)
	if err != nil {
		return nil
	}
	return &n
}

// of returns a number that may be missing, nil then.
func of(pairs map[string]uint64, name string) *uint64 {
	n, ok := pairs[name]
	if !ok {
		return nil
	}
	return &n
}
