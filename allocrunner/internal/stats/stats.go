// Package stats measures the CPU time and the memory of tasks, and of each of their processes. If a task has a cgroup
// to itself, of version 2 or 1, its figures are read there; otherwise they are summed over its processes in /proc. It
// promises that
//   - no figure is made up: the lists of what was measured name exactly the figures that the source has;
//   - any number of readers cost no more than one sample each half second, and no reader costs nothing;
//   - neither a task with thousands of processes nor one whose processes end while they are read makes a sample fail,
//     or an answer large;
//   - a process is identified by its number and its start, so that a number that is used again is another process.
//
// It does not follow the tasks' lives: the caller says with each sample which tasks run.
package stats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/proctree"
	"taskapi/internal/proc"
	"taskapi/internal/wake"
)

// Config configures a Sampler. All fields are required.
type Config struct {
	// Tasks returns the tasks to measure. Its error says that they are unknown for now.
	Tasks func(ctx context.Context) (Tasks, error)

	Logger *slog.Logger
}

// Tasks are the tasks of an allocation that have run.
type Tasks struct {
	View  proctree.View        // the tasks that run as processes
	Idle  []string             // tasks that run without a process; they use nothing
	Ended map[string]time.Time // all other tasks, with the time of each one's last process; they use nothing

	Measured map[string]*api.TaskResourceUsage // the tasks whose drivers measure them; not changed
}

// Sampler samples on demand. It has no goroutine but those of streams, which end with their contexts.
type Sampler struct {
	cfg    Config
	shared *Shared[api.AllocResourceUsage]

	// Only sample uses these fields:
	trackers map[string]*tracker // by task
	mhz      float64             // of a CPU; 0 while it has not been read
	failing  bool                // the latest attempt has failed
}

// New returns a Sampler. It does no I/O.
func New(cfg Config) *Sampler {
	s := &Sampler{cfg: cfg, trackers: map[string]*tracker{}}
	s.shared = NewShared(s.sample)
	return s
}

// Usage returns a sample that is hardly older than half a second. The sample is shared and must not be changed. The
// first one in a while takes a moment, because CPU use is measured between two samples. Errors: those of Config.Tasks
// and of /proc, ctx's.
func (s *Sampler) Usage(ctx context.Context) (*api.AllocResourceUsage, error) {
	return s.shared.Get(ctx)
}

func (s *Sampler) sample(ctx context.Context) (*api.AllocResourceUsage, time.Duration, error) {
	began := time.Now()
	usage, sure, err := s.measure(ctx)
	if err == nil && !sure {
		if err := wake.Sleep(ctx, FirstWindow); err != nil {
			return nil, 0, err
		}
		began = time.Now()
		usage, _, err = s.measure(ctx)
	}
	if err != nil && !s.failing && ctx.Err() == nil {
		s.cfg.Logger.Warn("can't measure what the tasks use; taskapi tries again at the next request", "error", err)
	}
	s.failing = err != nil && (s.failing || ctx.Err() == nil)
	return usage, time.Since(began), err
}

// measure takes one sample. sure reports whether the CPU use of every task is known.
func (s *Sampler) measure(ctx context.Context) (usage *api.AllocResourceUsage, sure bool, err error) {
	tasks, err := s.cfg.Tasks(ctx)
	if err != nil {
		return nil, false, err
	}
	began := time.Now()
	trees, err := proctree.Survey(tasks.View)
	if err != nil {
		return nil, false, err
	}
	if s.mhz == 0 {
		s.mhz = proc.Megahertz()
	}
	look := look{tasks.View, proc.UptimeTicks(), ownGroups{proc.Cgroups(tasks.View.Supervisor)}, usesSwap()}
	usage, sure = &api.AllocResourceUsage{
		ResourceUsage: &api.ResourceUsage{MemoryStats: &api.MemoryStats{}, CpuStats: &api.CpuStats{},
			DeviceStats: []*api.DeviceGroupStats{}},
		Tasks: map[string]*api.TaskResourceUsage{},
	}, true
	running := map[string]*tracker{}
	for _, root := range tasks.View.Roots {
		members := trees[root.Task]
		t := s.trackers[root.Task]
		if t == nil || t.pid != root.PID || t.start != root.Start {
			t = &tracker{pid: root.PID, start: root.Start}
		}
		running[root.Task] = t
		m := t.measure(began, members, look.sourcesOf(root, members))
		sure = sure && m.sure
		add(usage, root.Task, taskUsage(m, began, s.mhz))
	}
	for _, task := range tasks.Idle {
		add(usage, task, noUsage(began))
	}
	for task, measured := range tasks.Measured {
		add(usage, task, measured)
	}
	for task, at := range tasks.Ended {
		if usage.Tasks[task] == nil {
			usage.Tasks[task] = noUsage(at)
		}
	}
	s.trackers = running
	return usage, sure, nil
}

// ErrInterval is Stream's error for an interval that is not positive.
var ErrInterval = errors.New("the interval between two samples must be longer than 0")

// Stream sends a sample now, and then one each interval. It closes the channel when ctx ends. A reader that is late
// gets the next sample later. An error is logged once, and the sample is tried again at growing intervals. Errors:
// ErrInterval.
func (s *Sampler) Stream(ctx context.Context, interval time.Duration) (<-chan *api.AllocResourceUsage, error) {
	if interval <= 0 {
		return nil, fmt.Errorf("%w, not %v", ErrInterval, interval)
	}
	out := make(chan *api.AllocResourceUsage)
	go func() {
		defer close(out)
		s.stream(ctx, interval, out)
	}()
	return out, nil
}

func (s *Sampler) stream(ctx context.Context, interval time.Duration, out chan<- *api.AllocResourceUsage) {
	retry := wake.Backoff{First: fresh}
	for {
		usage, err := s.Usage(ctx)
		pause := interval
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			pause = retry.Pause()
		default:
			retry.Reset()
			select {
			case out <- usage:
			case <-ctx.Done():
				return
			}
		}
		if wake.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// look holds the machine's values of one sample, besides the processes.
type look struct {
	view   proctree.View
	ticks  uint64 // when the processes had been read
	groups ownGroups
	swaps  bool
}
