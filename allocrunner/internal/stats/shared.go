package stats

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// fresh is how long a sample is shared. A reader with one request a second never gets the same sample twice.
	fresh = 500 * time.Millisecond

	// costShare limits the cost of samples: a sample that took a twentieth of a second is shared for a second.
	costShare = 20

	// LongestWindow is the longest time over which CPU use is measured: more than the usual 15 s between two scrapes,
	// and still the present to a reader. The use of a younger process is measured since its start.
	LongestWindow = 30 * time.Second

	// FirstWindow is the time between the two samples that are taken if there is no earlier one. The CPU time of
	// cgroups is in microseconds, that of processes in hundredths of a second.
	FirstWindow = 200 * time.Millisecond
)

// Shared holds the latest sample of something. A request takes a sample, which all requests within a moment share.
type Shared[T any] struct {
	take func(context.Context) (sample *T, cost time.Duration, err error)
	turn *semaphore.Weighted // held while a sample is taken

	mu     sync.Mutex // guards the fields below
	latest *T
	good   time.Time // until when latest is shared
}

// NewShared returns a Shared. take is never called twice at a time; cost is how long it took to sample the machine.
func NewShared[T any](take func(context.Context) (sample *T, cost time.Duration, err error)) *Shared[T] {
	return &Shared[T]{take: take, turn: semaphore.NewWeighted(1)}
}

// Get returns a sample that is little older than half a second, or than twenty times its cost. It must not be changed.
// Errors: take's, ctx's.
func (s *Shared[T]) Get(ctx context.Context) (*T, error) {
	if kept := s.kept(); kept != nil {
		return kept, nil
	}
	if err := s.turn.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer s.turn.Release(1)
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

// kept returns the latest sample; nil if it is too old.
func (s *Shared[T]) kept() *T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().After(s.good) {
		return nil
	}
	return s.latest
}
