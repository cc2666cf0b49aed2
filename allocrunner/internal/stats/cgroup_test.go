package stats_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/proctest"
	"taskapi/allocrunner/internal/proctree"
	"taskapi/allocrunner/internal/stats"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// makeCgroup makes a cgroup below dir, with the process, until the test has ended it.
func makeCgroup(t *testing.T, dir string, pid int) string {
	t.Helper()
	group := filepath.Join(dir, "taskapi-stats-test-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skip("no cgroup can be made: ", err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			t.Error(err)
		}
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		t.Skip("the process can't be put into a cgroup: ", err)
	}
	return group
}

// cgroupDir returns the directory of this program's cgroup of a controller, or skips the test.
func cgroupDir(t *testing.T, controller string) string {
	t.Helper()
	dir := stats.OwnDir(controller)
	if dir == "" {
		t.Skipf("no cgroup for %q is mounted here", controller)
	}
	return dir
}

const burn = `while :; do :; done`

// TestVersion1Memory: a task that has a cgroup of version 1 to itself is measured by it. One that shares it is not, nor
// one that is only partly in it.
func TestVersion1Memory(t *testing.T) {
	proctest.NeedRoot(t)
	dir := cgroupDir(t, "memory")
	c, other := start(t, "a", `sleep 1000 & wait`), start(t, "b", `exec sleep 1000`)
	s := sampler(c.root, other.root)
	until(t, s, "a", func(u *api.TaskResourceUsage) bool { return len(u.Pids) == 2 })
	whole := func(u *api.TaskResourceUsage) bool {
		return slices.Contains(u.ResourceUsage.MemoryStats.Measured, "Usage")
	}
	partly := func(u *api.TaskResourceUsage) bool { return !whole(u) && u.ResourceUsage.MemoryStats.RSS > 0 }

	group := makeCgroup(t, dir, c.pid)
	put := func(group string, pids ...string) {
		t.Helper()
		for _, pid := range pids {
			must.OK(t, os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(pid), 0))
		}
	}
	until(t, s, "a", partly)
	pids := slices.Collect(maps.Keys(until(t, s, "a", partly).Pids))
	t.Cleanup(func() { put(dir, pids...) })
	put(group, pids...)
	m := until(t, s, "a", whole).ResourceUsage.MemoryStats
	if want := []string{"RSS", "Cache"}; !slices.Equal(m.Measured[:2], want) ||
		!slices.Contains(m.Measured, "Max Usage") || m.MaxUsage < m.Usage {
		t.Errorf("memory = %+v", m)
	}
	put(group, strconv.Itoa(other.pid))
	until(t, s, "a", partly)
	put(dir, strconv.Itoa(other.pid))
	until(t, s, "a", whole)
}

// TestVersion1CPU reads the time of cpuacct.
func TestVersion1CPU(t *testing.T) {
	proctest.NeedRoot(t)
	c := start(t, "a", burn)
	makeCgroup(t, cgroupDir(t, "cpuacct"), c.pid)
	until(t, sampler(c.root), "a", func(u *api.TaskResourceUsage) bool { // a sample that is taken slowly has too much
		return u.ResourceUsage.CpuStats.Percent > 1 && u.ResourceUsage.CpuStats.Percent < 150
	})
	if r, err := stats.ReadCPU1(c.pid); err != nil || r.Sum() == 0 {
		t.Errorf("cpuacct says %v, %v", r, err)
	}
}

// TestThrottled: a task that the kernel keeps from running because of a limit is shown with it, and no other is.
func TestThrottled(t *testing.T) {
	proctest.NeedRoot(t)
	c := start(t, "a", burn)
	makeCgroup(t, cgroupDir(t, "cpuacct"), c.pid)
	group := makeCgroup(t, cgroupDir(t, "cpu"), c.pid)
	s := sampler(c.root)
	if got := usageOf(t, s, "a").ResourceUsage.CpuStats; got.ThrottledPeriods != 0 ||
		!slices.Contains(got.Measured, "Throttled Periods") {
		t.Errorf("without a limit: %+v", got)
	}
	if err := os.WriteFile(filepath.Join(group, "cpu.cfs_quota_us"), []byte("5000"), 0); err != nil {
		t.Skip("no limit can be set: ", err)
	}
	until(t, s, "a", func(u *api.TaskResourceUsage) bool {
		return u.ResourceUsage.CpuStats.ThrottledPeriods > 0 &&
			u.ResourceUsage.CpuStats.ThrottledTime > uint64(time.Millisecond)
	})
}

// TestVersion2 reads a cgroup of version 2 that somebody has put the task into, on this machine without controllers.
func TestVersion2(t *testing.T) {
	proctest.NeedRoot(t)
	c := start(t, "a", burn)
	makeCgroup(t, cgroupDir(t, ""), c.pid)
	u := until(t, sampler(c.root), "a", func(u *api.TaskResourceUsage) bool {
		return u.ResourceUsage.CpuStats.Percent > 1
	})
	if m := u.ResourceUsage.MemoryStats; m.RSS == 0 || len(u.Pids) != 1 {
		t.Errorf("memory = %+v of %v", m, u.Pids)
	}
}

// TestVersion2Files reads files as a kernel with all controllers has them: this machine's memory controller may be of
// version 1.
func TestVersion2Files(t *testing.T) {
	c := start(t, "a", `exec sleep 1000`)
	dir := t.TempDir()
	group := filepath.Join(dir, "task.a")
	files := map[string]string{
		"cgroup.procs": strconv.Itoa(c.pid) + "\n",
		"cpu.stat": "usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\nnice_usec 0\n" +
			"core_sched.force_idle_usec 0\nnr_periods 10\nnr_throttled 4\nthrottled_usec 250\nnr_bursts 0\nburst_usec 0\n",
		"memory.current": "7000000\n", "memory.peak": "9000000\n", "memory.swap.current": "4096\n",
		"memory.stat": "anon 5000000\nfile 1000000\nkernel 300000\nfile_mapped 20000\n",
	}
	write := func(files map[string]string) {
		for name, text := range files {
			must.OK(t, os.WriteFile(filepath.Join(group, name), []byte(text), 0o600))
		}
	}
	must.OK(t, os.Mkdir(group, 0o700))
	write(files)
	root := c.root
	root.Fenced = true
	s := samplerOf(proctree.View{Supervisor: os.Getpid(), Cgroup: dir, Roots: []proctree.ViewRoot{root}})
	u := usageOf(t, s, "a").ResourceUsage
	want := &api.MemoryStats{RSS: 5000000, Cache: 1000000, Swap: 4096, Usage: 7000000, MaxUsage: 9000000,
		KernelUsage: 300000,
		Measured:    []string{"RSS", "Cache", "Swap", "Usage", "Max Usage", "Kernel Usage"}}
	same.As(t, want, u.MemoryStats, "memory")
	if u.CpuStats.ThrottledPeriods != 4 || u.CpuStats.ThrottledTime != 250000 ||
		u.CpuStats.UserMode <= u.CpuStats.SystemMode || u.CpuStats.SystemMode <= 0 {
		t.Errorf("cpu = %+v", u.CpuStats)
	}

	// no memory controller
	for _, name := range []string{"memory.current", "memory.peak", "memory.swap.current", "memory.stat"} {
		must.OK(t, os.Remove(filepath.Join(group, name)))
	}
	// nor that of CPUs
	write(map[string]string{"cpu.stat": "usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\n"})
	bare := samplerOf(proctree.View{Supervisor: os.Getpid(), Cgroup: dir, Roots: []proctree.ViewRoot{root}})
	u = until(t, bare, "a", func(u *api.TaskResourceUsage) bool {
		return u.ResourceUsage.MemoryStats.RSS > 0
	}).ResourceUsage
	if slices.Contains(u.CpuStats.Measured, "Throttled Periods") || slices.Contains(u.MemoryStats.Measured, "Max Usage") ||
		u.MemoryStats.RSS == want.RSS {
		t.Errorf("without controllers: %+v %+v", u.CpuStats, u.MemoryStats)
	}
}
