package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
)

// How long an allocation that has ended is read on the operator's socket, by clients that were there at the end. Nobody else delays the exit.
const (
	// lingerFor is how long after its latest request a client is taken to be there: the stock command line asks once a second.
	lingerFor = 3 * time.Second
	// lingerAtMost bounds it, whatever the clients do.
	lingerAtMost = 10 * time.Second
	// replacedAtMost bounds it where another version of the job waits to begin.
	replacedAtMost = time.Second
	// lingerPause is the pause between two looks at them.
	lingerPause = 10 * time.Millisecond
)

// audience is what the operator's clients have read of the allocation.
type audience struct {
	interfaces.Updates // gets every version, too

	mu     sync.Mutex // guards the fields below
	latest time.Time  // of the answers to them
	seen   uint64     // the highest index of those
	over   uint64     // the index from which on the allocation has ended; 0 for none
	stops  bool       // the end was requested over the API: its evaluation is there to be read
}

var _ interfaces.Updates = (*audience)(nil)

// AllocUpdated looks whether a version is one of an allocation that has ended.
func (a *audience) AllocUpdated(alloc *api.Allocation) {
	a.Updates.AllocUpdated(alloc)
	ended := interfaces.Ended(alloc)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !ended:
		a.over = 0
	case a.over == 0 || alloc.ModifyIndex < a.over:
		a.over = alloc.ModifyIndex
	}
}

// answered notes an answer on a socket, with the index of the allocation in it, 0 for none.
func (a *audience) answered(owner auth.Owner, index uint64) {
	if owner.Task != "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.latest, a.seen = time.Now(), max(a.seen, index)
}

// stopping notes that the end was requested over the API.
func (a *audience) stopping() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stops = true
}

// present reports whether a client may still want to read the end: one asked lately, and has its connection open, or has requested the end
// and not read it.
func (a *audience) present(now time.Time, connections int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.latest.IsZero() || now.Sub(a.latest) >= lingerFor {
		return false
	}
	return connections > 0 || a.stops && a.seen < a.over
}

// misses reports whether a client asked lately, has its connection open, and nobody has read the end.
func (a *audience) misses(now time.Time, connections int) bool {
	a.mu.Lock()
	unread := a.seen < a.over
	a.mu.Unlock()
	return unread && a.present(now, connections)
}

// linger returns when nobody reads the end of the allocation any more, or when the process is to leave. connections returns how many the
// operator's clients have open. An allocation that is replaced waits for its last events to be read alone.
func (a *audience) linger(ctx context.Context, replaced bool, connections func() int, leaving <-chan struct{}) {
	wanted, atMost := a.present, lingerAtMost
	if replaced {
		wanted, atMost = a.misses, replacedAtMost
	}
	most := time.NewTimer(atMost)
	defer most.Stop()
	tick := time.NewTicker(lingerPause)
	defer tick.Stop()
	for wanted(time.Now(), connections()) {
		select {
		case <-tick.C:
			continue
		case <-most.C:
		case <-ctx.Done():
		case <-leaving:
		}
		return
	}
}

// collect removes the allocation, once it has ended. Errors: interfaces.ErrNotTerminal.
func (s *wiring) collect(ctx context.Context) error {
	if !s.runner.Terminal() || s.agent.present().next != nil {
		return fmt.Errorf("remove: %w", interfaces.ErrNotTerminal)
	}
	select {
	case <-s.ended:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.removing.Lock()
	defer s.removing.Unlock()
	if s.removed {
		return nil
	}
	err := s.runner.Destroy(ctx)
	s.removed = err == nil
	return err
}
