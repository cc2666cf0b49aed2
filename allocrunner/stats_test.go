package allocrunner_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// usage returns what the tasks use once that is as wanted.
func (r *running) usage(ok func(*api.AllocResourceUsage) error) *api.AllocResourceUsage {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), deadline)
	defer cancel()
	samples, err := r.runner.Stats(ctx, 100*time.Millisecond)
	must.OK(r.t, err)
	why := errors.New("no sample came")
	for usage := range samples {
		if why = ok(usage); why == nil {
			return usage
		}
	}
	r.t.Fatal(why)
	return nil
}

// cpu and rss return figures of a task, zero while it is not there.
func cpu(u *api.AllocResourceUsage, task string) float64 {
	if t := u.Tasks[task]; t != nil {
		return t.ResourceUsage.CpuStats.Percent
	}
	return 0
}

func rss(u *api.AllocResourceUsage, task string) uint64 {
	if t := u.Tasks[task]; t != nil {
		return t.ResourceUsage.MemoryStats.RSS
	}
	return 0
}

// TestStats measures a busy process, one that takes memory in a child, a daemon that has left its parents, one that
// idles, and one that has ended.
func TestStats(t *testing.T) {
	dir := t.TempDir()
	daemon := filepath.Join(dir, "daemon")
	r := run(t, "service",
		shell("busy", `while :; do :; done`),
		shell("large", `dd if=/dev/zero of=/dev/null bs=64M & wait`),
		shell("daemon", `(setsid sh -c 'echo $$ > `+daemon+`; while :; do :; done' > /dev/null 2>&1 &); exec sleep 1000`),
		shell("idle", `exec sleep 1000`),
		shell("gone", `exit 0`, lifecycle("prestart", false)),
	)
	u := r.usage(func(u *api.AllocResourceUsage) error {
		if u.Tasks["daemon"] == nil || u.Tasks["idle"] == nil {
			return fmt.Errorf("%d tasks", len(u.Tasks))
		}
		pid, _ := os.ReadFile(daemon) // it comes with the daemon
		child := u.Tasks["daemon"].Pids[strings.TrimSpace(string(pid))]
		if child == nil {
			return fmt.Errorf("the daemon %s is not among %v", pid, u.Tasks["daemon"].Pids)
		}
		busy, large, idle := cpu(u, "busy"), cpu(u, "large"), cpu(u, "idle") // whose start was work, too
		if least := min(busy, large, cpu(u, "daemon"), child.CpuStats.Percent); least == 0 || idle > least/10 || busy > 150 ||
			rss(u, "large") < 64<<20 {
			return fmt.Errorf("busy %v %%, daemon %v %% (%v %% in the process), large %v %% and %d bytes, idle %v %%", busy,
				cpu(u, "daemon"),
				child.CpuStats.Percent, large, rss(u, "large"), idle)
		}
		return nil
	})
	same.As(t, 2, len(u.Tasks["large"].Pids), "processes of large")
	gone := u.Tasks["gone"]
	if gone == nil || gone.Pids == nil || len(gone.Pids) > 0 || gone.ResourceUsage.MemoryStats.RSS != 0 ||
		gone.Timestamp >= u.Timestamp {
		t.Errorf("gone = %+v", gone)
	}
	var sum uint64
	percent := 0.0
	for _, task := range u.Tasks {
		sum += task.ResourceUsage.MemoryStats.RSS
		percent += task.ResourceUsage.CpuStats.Percent
	}
	if all := u.ResourceUsage; all.MemoryStats.RSS != sum || all.CpuStats.Percent-percent > 0.001 ||
		percent-all.CpuStats.Percent > 0.001 {
		t.Errorf("sum = %+v %+v, want %d and %v", all.MemoryStats, all.CpuStats, sum, percent)
	}
	for _, name := range []string{"Throttled Periods", "Throttled Time"} { // nothing here is limited
		if slices.Contains(u.ResourceUsage.CpuStats.Measured, name) && u.ResourceUsage.CpuStats.ThrottledPeriods != 0 {
			t.Errorf("%s is measured", name)
		}
	}

	r.runner.Kill()
	_ = r.end()
	r.usage(func(u *api.AllocResourceUsage) error {
		if len(u.Tasks) != 5 || u.Timestamp != 0 || u.ResourceUsage.MemoryStats.RSS != 0 || len(u.Tasks["busy"].Pids) > 0 {
			return fmt.Errorf("after the end: %+v", u)
		}
		return nil
	})
}

// TestStatsOfARestartedTask: the new process is not measured by the old one.
func TestStatsOfARestartedTask(t *testing.T) {
	r := run(t, "service", shell("a", `exec sleep 1000`))
	first := r.usage(func(u *api.AllocResourceUsage) error {
		if a := u.Tasks["a"]; a == nil || len(a.Pids) != 1 {
			return fmt.Errorf("%+v", u.Tasks)
		}
		return nil
	})
	r.untilState("a", "running")
	must.OK(t, r.runner.RestartTask(t.Context(), "a"))
	r.usage(func(u *api.AllocResourceUsage) error {
		a := u.Tasks["a"]
		if a == nil || len(a.Pids) != 1 {
			return fmt.Errorf("%+v", a)
		}
		for pid := range a.Pids {
			if first.Tasks["a"].Pids[pid] != nil {
				return errors.New("still the old process")
			}
		}
		return nil
	})
}

// TestStatsAfterTheKeeperWasKilled: its tasks have gone with it, and the others are still answered for.
func TestStatsAfterTheKeeperWasKilled(t *testing.T) {
	r := runWith(t, "service", func(g *api.TaskGroup, _ *interfaces.Config) {
		g.RestartPolicy.Attempts, g.RestartPolicy.Delay, g.RestartPolicy.Mode = new(1), new(time.Hour), new("delay")
	}, shell("a", `exec sleep 1000`))
	r.usage(func(u *api.AllocResourceUsage) error {
		if u.Tasks["a"] == nil || len(u.Tasks["a"].Pids) != 1 {
			return fmt.Errorf("%+v", u.Tasks)
		}
		return nil
	})
	r.killKeeper()
	r.usage(func(u *api.AllocResourceUsage) error {
		if a := u.Tasks["a"]; a == nil || len(a.Pids) != 0 || u.Timestamp != 0 {
			return fmt.Errorf("%+v", a)
		}
		return nil
	})
}

// TestStatsInterval refuses what would be a tight loop.
func TestStatsInterval(t *testing.T) {
	r := run(t, "service", shell("a", `exec sleep 1000`))
	same.Fails(t, same.Err(r.runner.Stats(t.Context(), 0)), "an interval of 0 is taken")
}
