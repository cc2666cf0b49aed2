// Package stats measures what tasks use of their machine: CPU time and memory, of each task and each of its processes. What a task has a
// cgroup to itself for is read there, of version 2 or 1; the rest is summed over its processes in /proc. It promises that
//   - nothing is made up: the lists of what was measured name no figure that its source does not have;
//   - any number of readers cost no more than one sample each half second, and nobody's reading none;
//   - neither a task with thousands of processes nor one that ends them while they are read makes a sample fail, or an answer large;
//   - a process is its number and its start: what has a number again is another.
//
// It knows nothing of the tasks' lives: what runs is told to it with each sample.
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
)

// longestRetry is the most between two attempts after an error.
const longestRetry = 30 * time.Second

// Config is what a Sampler is made of. All fields are required.
type Config struct {
	// Tasks returns what is to be measured, as it is now. Its error says that this can't be known for now.
	Tasks func(ctx context.Context) (Tasks, error)

	Logger *slog.Logger
}

// Tasks are the tasks of an allocation that have run.
type Tasks struct {
	View  proctree.View        // of those that run
	Idle  []string             // run without a process, and use nothing
	Ended map[string]time.Time // when each of the others had its last process; they use nothing
}

// Sampler samples on demand. It has no goroutine but those of streams, which end with their contexts.
type Sampler struct {
	cfg    Config
	shared *Shared[api.AllocResourceUsage]

	// Used by the one who samples alone:
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

// Usage returns a sample that is hardly older than half a second. It is shared and not changed. The first in a while takes a moment, for
// CPU use is between two samples. Errors: those of Config.Tasks and of /proc, ctx's.
func (s *Sampler) Usage(ctx context.Context) (*api.AllocResourceUsage, error) {
	return s.shared.Get(ctx)
}

func (s *Sampler) sample(ctx context.Context) (*api.AllocResourceUsage, time.Duration, error) {
	began := time.Now()
	usage, sure, err := s.measure(ctx)
	if err == nil && !sure {
		select {
		case <-time.After(FirstWindow):
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
		began = time.Now()
		usage, _, err = s.measure(ctx)
	}
	if err != nil && !s.failing && ctx.Err() == nil {
		s.cfg.Logger.Warn("what the tasks use can't be measured; it is tried again when somebody asks", "error", err)
	}
	s.failing = err != nil && (s.failing || ctx.Err() == nil)
	return usage, time.Since(began), err
}

// measure takes one sample. sure says that the CPU use of every task is known.
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
		s.mhz = Megahertz()
	}
	look := newLook(tasks.View)
	usage, sure = newAllocUsage(), true
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
	for task, at := range tasks.Ended {
		if running[task] == nil {
			usage.Tasks[task] = noUsage(at)
		}
	}
	s.trackers = running
	return usage, sure, nil
}

// ErrInterval is Stream's for an interval that is none.
var ErrInterval = errors.New("the interval between two samples must be longer than 0")

// Stream sends a sample now, and then one each interval, until ctx ends, which closes the channel; a reader that is late gets the next one later. An error is
// logged once, and tried again at growing intervals. Errors: ErrInterval.
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
	timer := time.NewTimer(interval)
	defer timer.Stop()
	retry := time.Duration(0) // until the next attempt after an error
	for {
		usage, err := s.Usage(ctx)
		pause := interval
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			retry = min(longestRetry, max(fresh, 2*retry))
			pause = retry
		default:
			retry = 0
			select {
			case out <- usage:
			case <-ctx.Done():
				return
			}
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// look is what one sample has read of the machine besides the processes.
type look struct {
	view   proctree.View
	ticks  uint64 // when the processes had been read
	groups *ownGroups
	swaps  bool
}

func newLook(view proctree.View) look {
	return look{view: view, ticks: proc.UptimeTicks(), groups: findGroups(view.Supervisor), swaps: usesSwap()}
}
