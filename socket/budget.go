package socket

import "sync"

// Budget bounds how many connections several sockets have open together. Each socket has a Share with a guaranteed
// number of connections; all share the rest.
type Budget struct {
	mu         sync.Mutex // guards the fields below, and those of its shares
	limit      int
	guaranteed int // to all shares together
	common     int // open connections beyond the guarantees of their shares
}

// NewBudget returns a Budget of limit connections, or of as many as are guaranteed, if those are more.
func NewBudget(limit int) *Budget { return &Budget{limit: limit} }

// Share returns a new share, for one socket at a time. If it is made while connections are open, the Budget may exceed
// its limit by the share's guarantee for a while.
func (b *Budget) Share(guaranteed int) *Share {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.guaranteed += guaranteed
	return &Share{budget: b, guaranteed: guaranteed}
}

// Share is a socket's part of a Budget. A nil Share bounds nothing.
type Share struct {
	budget     *Budget
	guaranteed int
	open       int // guarded by the budget's mu
}

// acquire takes a place, if there is one.
func (s *Share) acquire() bool {
	if s == nil {
		return true
	}
	b := s.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.open >= s.guaranteed {
		if b.common >= b.limit-b.guaranteed {
			return false
		}
		b.common++
	}
	s.open++
	return true
}

// release gives a place back.
func (s *Share) release() {
	if s == nil {
		return
	}
	b := s.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.open > s.guaranteed {
		b.common--
	}
	s.open--
}
