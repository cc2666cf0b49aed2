package stats_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
	"go.uber.org/goleak"

	"taskapi/allocrunner/internal/proctest"
	"taskapi/allocrunner/internal/proctree"
	"taskapi/allocrunner/internal/stats"
	"taskapi/internal/must"
	"taskapi/internal/proc"
	"taskapi/internal/same"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// child is a process with its descendants, as a task without a cgroup.
type child struct {
	pid  int
	root proctree.ViewRoot
}

// start starts a script as a task of that name.
func start(t *testing.T, name, script string, edit ...func(*exec.Cmd)) *child {
	t.Helper()
	c := &child{}
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Env = append(os.Environ(), "NOMAD_TASK_NAME="+name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	for _, f := range edit {
		f(cmd)
	}
	must.OK(t, cmd.Start())
	c.pid = cmd.Process.Pid
	t.Cleanup(func() {
		_ = syscall.Kill(-c.pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	p := must.Get(proc.Read(c.pid))(t)
	c.root = proctree.ViewRoot{Task: name, PID: c.pid, Start: p.Start, Marker: "NOMAD_TASK_NAME=" + name}
	return c
}

func sampler(roots ...proctree.ViewRoot) *stats.Sampler {
	return samplerOf(proctree.View{Supervisor: os.Getpid(), Roots: roots})
}

func samplerOf(view proctree.View) *stats.Sampler {
	return stats.New(stats.Config{Logger: slog.New(slog.DiscardHandler),
		Tasks: func(context.Context) (stats.Tasks, error) {
			return stats.Tasks{View: view}, nil
		}})
}

func usageOf(t *testing.T, s *stats.Sampler, task string) *api.TaskResourceUsage {
	t.Helper()
	all := must.Get(s.Usage(t.Context()))(t)
	if all.Tasks[task] == nil {
		t.Fatalf("no task %q in %v", task, all.Tasks)
	}
	return all.Tasks[task]
}

// until samples until it is as wanted.
func until(t *testing.T, s *stats.Sampler, task string, ok func(*api.TaskResourceUsage) bool) *api.TaskResourceUsage {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	samples := must.Get(s.Stream(ctx, 50*time.Millisecond))(t)
	var last *api.TaskResourceUsage
	for all := range samples {
		if last = all.Tasks[task]; ok(last) {
			return last
		}
	}
	t.Fatalf("the latest is cpu %+v memory %+v of %d", last.ResourceUsage.CpuStats, last.ResourceUsage.MemoryStats,
		len(last.Pids))
	return nil
}

// TestFirstAnswer: what has no earlier sample is measured since its start when that is known, and else by two samples,
// not as idle.
func TestFirstAnswer(t *testing.T) {
	busy := start(t, "busy", `while :; do :; done`)
	unknown := busy.root
	unknown.Start = 0
	for name, root := range map[string]proctree.ViewRoot{"start known": busy.root, "start unknown": unknown} {
		t.Run(name, func(t *testing.T) {
			for !used(t, busy.pid) {
				proctest.Pause()
			}
			u := usageOf(t, sampler(root), "busy")
			if u.ResourceUsage.CpuStats.Percent <= 0 {
				t.Errorf("cpu = %+v, want some", u.ResourceUsage.CpuStats)
			}
		})
	}
}

// used reports whether a process has used a twentieth of a second.
func used(t *testing.T, pid int) bool {
	t.Helper()
	u := must.Get(proc.Read(pid))(t)
	return u.CPU.Sum() >= 50*time.Millisecond
}

// TestShortLivedProcesses: programs that are over before anybody looks have used what their parent has been told.
func TestShortLivedProcesses(t *testing.T) {
	c := start(t, "forks", `while :; do /bin/true; done`)
	until(t, sampler(c.root), "forks", func(u *api.TaskResourceUsage) bool {
		own := 0.0
		for _, p := range u.Pids {
			own += p.CpuStats.Percent
		}
		return u.ResourceUsage.CpuStats.Percent > own && u.ResourceUsage.CpuStats.Percent > 1
	})
}

// TestManyProcesses: the answer lists those that use most, and the sum has all.
func TestManyProcesses(t *testing.T) {
	const many = stats.MostPIDs + 100
	file := filepath.Join(t.TempDir(), "busy")
	c := start(t, "many",
		fmt.Sprintf(`i=0; while [ $i -lt %d ]; do sleep 1000 & i=$((i+1)); done; (while :; do :; done) & echo $! > %s; wait`,
			many, file))
	u := until(t, sampler(c.root), "many", func(u *api.TaskResourceUsage) bool {
		busy, _ := os.ReadFile(file) // the last of all to start
		pid := strings.TrimSpace(string(busy))
		return len(u.Pids) == stats.MostPIDs && u.Pids[pid] != nil && u.Pids[pid].CpuStats.Percent > 1
	})
	var listed uint64
	for _, p := range u.Pids {
		listed += p.MemoryStats.RSS
	}
	if u.ResourceUsage.MemoryStats.RSS <= listed {
		t.Errorf("sum = %d, want more than the %d of those listed", u.ResourceUsage.MemoryStats.RSS, listed)
	}
}

// TestAnotherUser measures a task whose user this program is not.
func TestAnotherUser(t *testing.T) {
	proctest.NeedRoot(t)
	c := start(t, "nobody", `while :; do :; done`, func(cmd *exec.Cmd) {
		cmd.Dir, cmd.SysProcAttr.Credential = "/", &syscall.Credential{Uid: 65534, Gid: 65534}
	})
	until(t, sampler(c.root), "nobody", func(u *api.TaskResourceUsage) bool {
		return u.ResourceUsage.CpuStats.Percent > 1 && u.ResourceUsage.MemoryStats.RSS > 0
	})
}

// TestReaders: however many ask, and how often, there are two samples in a second at most, and none when nobody asks.
func TestReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		samples := 0
		s := stats.New(stats.Config{Logger: slog.New(slog.DiscardHandler), Tasks: func(context.Context) (stats.Tasks, error) {
			samples++
			return stats.Tasks{Idle: []string{"a"}}, nil
		}})
		var readers sync.WaitGroup
		for range 50 {
			readers.Go(func() {
				for range 1000 {
					if u, err := s.Usage(t.Context()); err != nil || u.Tasks["a"] == nil ||
						time.Since(time.Unix(0, u.Timestamp)) > time.Second {
						t.Errorf("usage = %+v, %v", u, err)
					}
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		readers.Wait()
		if samples < 10 || samples > 21 {
			t.Errorf("%d samples in 10 seconds, want 20", samples)
		}
		before := samples
		time.Sleep(time.Hour)
		same.As(t, before, samples, "something is measured that nobody asks for")
	})
}

// TestErrorsAreTriedAgain: at growing intervals, with one line in the log, and until they are over.
func TestErrorsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var attempts atomic.Int32
		var works atomic.Bool
		s := stats.New(stats.Config{Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Tasks: func(context.Context) (stats.Tasks, error) {
				attempts.Add(1)
				if !works.Load() {
					return stats.Tasks{}, errors.New("the keeper is away")
				}
				return stats.Tasks{}, nil
			}})
		samples := must.Get(s.Stream(t.Context(), time.Second))(t)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := attempts.Load(); n < 4 || n > 9 {
			t.Errorf("%d attempts in a minute", n)
		}
		if n := strings.Count(log.String(), "the keeper is away"); n != 1 {
			t.Errorf("%d lines in the log:\n%s", n, log.String())
		}
		works.Store(true)
		if u := <-samples; u == nil || u.Tasks == nil {
			t.Errorf("usage = %+v", u)
		}
	})
}

// TestStreamEnds with its context, whether or not somebody reads, and leaves no goroutine: else the bubble would not
// end.
func TestStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sampler()
		for _, reads := range []int{0, 1, 5} {
			ctx, cancel := context.WithCancel(t.Context())
			samples := must.Get(s.Stream(ctx, time.Second))(t)
			for range reads {
				<-samples
			}
			synctest.Wait()
			cancel()
			for range samples { // one may have been under way
			}
		}
		same.Error(t, stats.ErrInterval, same.Err(s.Stream(t.Context(), -1)), "error")
	})
}
