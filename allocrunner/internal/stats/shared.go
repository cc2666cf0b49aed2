package stats

import (
	"context"
	"sync"
	"time"
)

const (
	// fresh is how long a sample serves everybody who asks. Those who ask each second never get the same one twice.
	fresh = 500 * time.Millisecond

	// costShare bounds what samples may cost: one that took a twentieth of a second serves for a second.
	costShare = 20

	// LongestWindow is how old the sample may be since which CPU time is counted: more than the usual 15 s between two scrapes, and still
	// the present to a reader. A process that is younger is counted since its start.
	LongestWindow = 30 * time.Second

	// FirstWindow is the time between the two samples that are taken when there is none to count from. CPU time of cgroups is in microseconds, that of
	// processes in hundredths of a second.
	FirstWindow = 200 * time.Millisecond
)

// Shared is the latest sample of something, which is taken when somebody asks and serves all who ask within a moment.
type Shared[T any] struct {
	take func(context.Context) (sample *T, cost time.Duration, err error)
	turn chan struct{} // held by the one who samples

	mu     sync.Mutex // guards the fields below
	latest *T
	good   time.Time // how long latest serves
}

// NewShared returns a Shared. take is never called twice at a time; cost is how long the machine was looked at.
func NewShared[T any](take func(context.Context) (sample *T, cost time.Duration, err error)) *Shared[T] {
	return &Shared[T]{take: take, turn: make(chan struct{}, 1)}
}

// Get returns a sample that is hardly older than half a second, or than twenty times what it cost. It is not to be changed. Errors: take's,
// ctx's.
func (s *Shared[T]) Get(ctx context.Context) (*T, error) {
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
	sample, cost, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest, s.good = sample, time.Now().Add(max(fresh, costShare*cost))
	return sample, nil
}

// kept returns the latest sample, nil when it is too old.
func (s *Shared[T]) kept() *T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().After(s.good) {
		return nil
	}
	return s.latest
}
