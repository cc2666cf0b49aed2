package health

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Watcher waits for the decision about one allocation. Its methods are safe for concurrent use.
type Watcher struct {
	policy    Policy
	onDecided func(State)
	wake      chan struct{} // has a token when state has changed

	mu    sync.Mutex // guards state
	state State
}

// NewWatcher returns a watcher whose deadline counts from now. It starts nothing. Run calls onDecided once, with the
// state that has the decision.
func NewWatcher(policy Policy, onDecided func(State)) *Watcher {
	return &Watcher{policy: policy, onDecided: onDecided, wake: make(chan struct{}, 1), state: policy.New(time.Now())}
}

// Observe must be called with every change of the tasks or the checks. It keeps neither map. It does not block, and may
// be called before Run and after the decision.
func (w *Watcher) Observe(tasks map[string]*api.TaskState, checks api.AllocCheckStatuses) {
	w.step(func(p Policy, s State) State { return p.Next(s, Event{tasks, checks}, time.Now()) })
	select {
	case w.wake <- struct{}{}:
	default: // Run will look anyway
	}
}

// Run waits for the decision, calls onDecided, and returns. If ctx ends before the decision, onDecided is not called.
// Run is called once.
func (w *Watcher) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
		case <-w.wake:
		case <-timer.C:
		}
		s := w.step(func(p Policy, s State) State {
			if ctx.Err() != nil {
				return s
			}
			return p.At(s, time.Now())
		})
		if s.Phase != Undecided {
			w.onDecided(s)
			return
		}
		if ctx.Err() != nil {
			return
		}
		timer.Reset(time.Until(w.policy.Again(s)))
	}
}

func (w *Watcher) step(f func(Policy, State) State) State {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state = f(w.policy, w.state)
	return w.state
}
