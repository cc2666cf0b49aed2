// Package hoststats measures the machine: its memory, each of its CPUs, the file system of a directory, and its uptime.
// Nothing is measured while nobody asks, and any number of readers cost no more than two samples a second.
package hoststats

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/stats"
	"taskapi/internal/proc"
	"taskapi/internal/wake"
)

// Host is this machine.
type Host struct {
	dir    string
	shared *stats.Shared[sample]

	// Only sample uses these fields:
	at     time.Time
	before map[string]cpuTicks // of the latest sample
}

// sample is what was measured at a time.
type sample struct {
	*api.HostStats
	at time.Time
}

// New returns the machine, with the file system of dir. It does no I/O.
func New(dir string) *Host {
	h := &Host{dir: dir}
	h.shared = stats.NewShared(h.sample)
	return h
}

// Stats returns the machine's use and when it was measured: memory in bytes, the use of each CPU in percent since the
// latest sample or in a fifth of a second, and the uptime in seconds. The result is shared and must not be changed.
// Errors: those of /proc and of the directory, ctx's.
func (h *Host) Stats(ctx context.Context) (*api.HostStats, time.Time, error) {
	s, err := h.shared.Get(ctx)
	if err != nil {
		return nil, time.Time{}, err
	}
	return s.HostStats, s.at, nil
}

func (h *Host) sample(ctx context.Context) (_ *sample, cost time.Duration, err error) {
	if h.before == nil || time.Since(h.at) > stats.LongestWindow {
		if h.before, _, err = readCPUs(); err != nil {
			return nil, 0, err
		}
		if err := wake.Sleep(ctx, stats.FirstWindow); err != nil {
			h.before = nil
			return nil, 0, err
		}
	}
	began := time.Now()
	cpus, names, err := readCPUs()
	if err != nil {
		return nil, 0, err
	}
	all := &api.HostStats{CPU: []*api.HostCPUStats{}}
	busy := 0.0
	for _, name := range names {
		use := cpus[name].since(h.before[name])
		busy += 100 - use.Idle
		all.CPU = append(all.CPU, &api.HostCPUStats{CPU: name, User: use.User, System: use.System, Idle: use.Idle})
	}
	all.CPUTicksConsumed = busy / 100 * proc.Megahertz()
	h.before, h.at = cpus, began
	if all.Memory, err = Memory(); err != nil {
		return nil, 0, err
	}
	if all.AllocDirStats, err = Disk(h.dir); err != nil {
		return nil, 0, err
	}
	all.DiskStats = []*api.HostDiskStats{all.AllocDirStats}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return nil, 0, fmt.Errorf("uptime: %w", err)
	}
	all.Uptime = uint64(info.Uptime)
	return &sample{all, began}, time.Since(began), nil
}

// cpuTicks are the times of one CPU, in the kernel's ticks.
type cpuTicks struct{ user, system, idle uint64 }

// since returns the use of a CPU between two samples. A CPU that is new, or whose clock stood still, was idle.
func (c cpuTicks) since(before cpuTicks) api.HostCPUStats {
	if before == (cpuTicks{}) || c.user < before.user || c.system < before.system || c.idle < before.idle {
		return api.HostCPUStats{Idle: 100}
	}
	user, system, idle := float64(c.user-before.user), float64(c.system-before.system), float64(c.idle-before.idle)
	total := user + system + idle
	if total == 0 {
		return api.HostCPUStats{Idle: 100}
	}
	return api.HostCPUStats{User: 100 * user / total, System: 100 * system / total, Idle: 100 * idle / total}
}

// readCPUs reads the lines of /proc/stat with a CPU's times, "cpu0 user nice system idle iowait irq softirq steal ...".
// It also returns the CPUs' names in their order. Time spent waiting for a disk counts as idle. Time that another
// virtual machine has had is left out.
func readCPUs() (map[string]cpuTicks, []string, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil, nil, fmt.Errorf("CPUs: %w", err)
	}
	cpus, names := map[string]cpuTicks{}, []string(nil)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 8 || !strings.HasPrefix(fields[0], "cpu") || fields[0] == "cpu" {
			continue
		}
		ticks := func(field int) uint64 {
			n, _ := strconv.ParseUint(fields[field], 10, 64) // the kernel writes numbers
			return n
		}
		cpus[fields[0]] = cpuTicks{ticks(1) + ticks(2), ticks(3) + ticks(6) + ticks(7), ticks(4) + ticks(5)}
		names = append(names, fields[0])
	}
	if len(names) == 0 {
		return nil, nil, fmt.Errorf("/proc/stat names no CPU")
	}
	return cpus, names, nil
}

// Memory reads /proc/meminfo. Memory that is not available counts as used.
func Memory() (*api.HostMemoryStats, error) {
	values := maps.Collect(proc.Values("/proc/meminfo"))
	total, available := proc.Bytes(values["MemTotal"]), proc.Bytes(values["MemAvailable"])
	if total == 0 {
		return nil, errors.New("/proc/meminfo has no MemTotal")
	}
	return &api.HostMemoryStats{Total: total, Available: available, Free: proc.Bytes(values["MemFree"]),
		Used: total - min(total, available)}, nil
}
