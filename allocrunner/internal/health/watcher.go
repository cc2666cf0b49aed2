package health

import (
	"context"
	"sync"
	"time"

	"taskapi/internal/wake"
)

// Watcher waits for the decision about one allocation. Its methods are safe for concurrent use.
type Watcher struct {
	policy    Policy
	onDecided func(State)
	wake      wake.Signal // state has changed

	mu    sync.Mutex // guards state
	state State
}

// NewWatcher returns a watcher whose deadline counts from now. It starts nothing. Run calls onDecided once, with the
// state that has the decision.
func NewWatcher(policy Policy, onDecided func(State)) *Watcher {
	return &Watcher{policy: policy, onDecided: onDecided, wake: wake.New(), state: policy.New(time.Now())}
}

// Observe must be called with every change of the tasks or the checks. It keeps no map. It does not block, and may be
// called before Run and after the decision.
func (w *Watcher) Observe(e Event) {
	w.mu.Lock()
	w.state = w.policy.Next(w.state, e, time.Now())
	w.mu.Unlock()
	w.wake.Send()
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
		w.mu.Lock()
		if ctx.Err() == nil {
			w.state = w.policy.At(w.state, time.Now())
		}
		s := w.state
		w.mu.Unlock()
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
