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
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/proc"
	"taskapi/allocrunner/internal/proctree"
)

const (
	// fresh is how long a sample serves everybody who asks. Those who ask each second never get the same one twice.
	fresh = 500 * time.Millisecond

	// costShare bounds what samples may cost: one that took a twentieth of a second serves for a second.
	costShare = 20

	// longestWindow is how old the sample may be since which CPU time is counted: more than the usual 15 s between two scrapes, and still
	// the present to a reader. A process that is younger is counted since its start.
	longestWindow = 30 * time.Second

	// firstWindow is the time between the two samples that are taken when there is none to count from. CPU time of cgroups is in microseconds, that of
	// processes in hundredths of a second.
	firstWindow = 200 * time.Millisecond

	// longestRetry is the most between two attempts after an error.
	longestRetry = 30 * time.Second
)

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
	cfg  Config
	turn chan struct{} // held by the one who samples

	mu      sync.Mutex // guards the fields below
	latest  *api.AllocResourceUsage
	good    time.Time // how long latest serves
	failing bool      // the latest attempt has failed

	// Used by the holder of turn alone:
	trackers map[string]*tracker // by task
	machine  machine
}

// New returns a Sampler. It does no I/O.
func New(cfg Config) *Sampler {
	return &Sampler{cfg: cfg, turn: make(chan struct{}, 1), trackers: map[string]*tracker{}}
}

// Usage returns a sample that is hardly older than half a second. It is shared and not changed. The first in a while takes a moment, for
// CPU use is between two samples. Errors: those of Config.Tasks and of /proc, ctx's.
func (s *Sampler) Usage(ctx context.Context) (*api.AllocResourceUsage, error) {
	if kept := s.kept(); kept != nil {
		return kept, nil
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if kept := s.kept(); kept != nil {
		return kept, nil
	}
	return s.sample(ctx)
}

// kept returns the latest sample, nil when it is too old.
func (s *Sampler) kept() *api.AllocResourceUsage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().After(s.good) {
		return nil
	}
	return s.latest
}

func (s *Sampler) sample(ctx context.Context) (*api.AllocResourceUsage, error) {
	usage, sure, began, err := s.measure(ctx)
	if err == nil && !sure {
		select {
		case <-time.After(firstWindow):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		usage, _, began, err = s.measure(ctx)
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if !s.failing && ctx.Err() == nil {
			s.failing = true
			s.cfg.Logger.Warn("what the tasks use can't be measured; it is tried again when somebody asks", "error", err)
		}
		return nil, err
	}
	s.failing = false
	s.latest, s.good = usage, now.Add(max(fresh, costShare*now.Sub(began)))
	return usage, nil
}

// measure takes one sample. sure says that the CPU use of every task is known.
func (s *Sampler) measure(ctx context.Context) (usage *api.AllocResourceUsage, sure bool, began time.Time, err error) {
	tasks, err := s.cfg.Tasks(ctx)
	if err != nil {
		return nil, false, began, err
	}
	began = time.Now()
	trees, err := proctree.Survey(tasks.View)
	if err != nil {
		return nil, false, began, err
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
		add(usage, root.Task, taskUsage(m, began, s.machine.megahertz()))
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
	return usage, sure, began, nil
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
