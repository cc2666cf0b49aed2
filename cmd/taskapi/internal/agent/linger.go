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

// How long the operator's socket stays after the allocation has ended, for clients that were connected at the end.
// Nobody else delays the exit.
const (
	// lingerFor is how long after its latest request a client counts as connected: the stock command line sends one
	// each second.
	lingerFor = 3 * time.Second
	// lingerAtMost bounds the time, whatever the clients do.
	lingerAtMost = 10 * time.Second
	// replacedAtMost bounds the time when another version of the job waits to begin.
	replacedAtMost = 3 * time.Second
	// lingerPause is the pause between two looks at the clients.
	lingerPause = 10 * time.Millisecond
)

// audience knows which versions of the allocation the operator's clients have read.
type audience struct {
	interfaces.Updates // also gets every version

	mu     sync.Mutex // guards the fields below
	latest time.Time  // of the latest answer to an operator's client
	seen   uint64     // the highest index in those answers
	over   uint64     // the index at which the allocation has ended; 0 while it runs
	stops  bool       // a client has stopped the allocation, and wants to read the evaluation
}

var _ interfaces.Updates = (*audience)(nil)

// AllocUpdated notes whether the allocation has ended with the version.
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

// answered notes an answer on a socket, and the allocation's index in it; 0 for none.
func (a *audience) answered(owner auth.Owner, index uint64) {
	if owner.Task != "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.latest, a.seen = time.Now(), max(a.seen, index)
}

// stopping notes that a client has stopped the allocation.
func (a *audience) stopping() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stops = true
}

// reads reports whether a client may still want to read the end: it has sent a request lately, and its connection is
// open, or it has stopped the allocation and not read the end. For a replaced allocation no client may have read the
// end yet.
func (a *audience) reads(now time.Time, connections int, replaced bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.latest.IsZero() || now.Sub(a.latest) >= lingerFor {
		return false
	}
	unread := a.seen < a.over
	return connections > 0 && (unread || !replaced) || a.stops && unread
}

// linger returns when no client reads the end of the allocation any more, or when the process is to exit. connections
// returns the number of open connections of the operator's clients. A replaced allocation only waits until somebody has
// read its end.
func (a *audience) linger(ctx context.Context, replaced bool, connections func() int, leaving <-chan struct{}) {
	atMost := lingerAtMost
	if replaced {
		atMost = replacedAtMost
	}
	most := time.NewTimer(atMost)
	defer most.Stop()
	tick := time.NewTicker(lingerPause)
	defer tick.Stop()
	for a.reads(time.Now(), connections(), replaced) {
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

// collect removes the allocation if it has ended. Errors: interfaces.ErrNotTerminal, interfaces.ErrSticky.
func (s *wiring) collect(ctx context.Context) error {
	if !s.runner.Terminal() || s.agent.present().replacement != nil {
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
	if err := s.cfg.Dir.StickyLeft(s.runner.Alloc()); err != nil {
		return err
	}
	err := s.runner.Destroy(ctx)
	s.removed = err == nil
	return err
}
