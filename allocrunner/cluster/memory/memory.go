// Package memory is a cluster.Store that keeps nothing beyond the process: for tests, and for allocations that are
// simulated. A lease lives while one of its holders has not closed it.
package memory

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/internal/table"
)

// Store is one opening of a store in memory.
type Store struct {
	*shared
	closed func()
	done   <-chan struct{} // closed by closed
}

var _ cluster.Store = (*Store)(nil)

// shared is the part of a store that all of its openings share.
type shared struct {
	mu      sync.Mutex // guards the fields below
	table   *table.Table[[]byte]
	holders map[uint64]int // of each lease
}

// New returns an empty store.
func New() *Store { return (&shared{table: table.New[[]byte](), holders: map[uint64]int{}}).Open() }

// Open returns another opening of the same store, such as another process would have.
func (p *shared) Open() *Store {
	done := make(chan struct{})
	return &Store{p, sync.OnceFunc(func() { close(done) }), done}
}

func (s *Store) check(ctx context.Context) error {
	select {
	case <-s.done:
		return fmt.Errorf("%w: it is closed", cluster.ErrUnavailable)
	default:
		return ctx.Err()
	}
}

func (s *Store) live(lease uint64) bool { return s.holders[lease] > 0 }

// Get returns an entry.
func (s *Store) Get(ctx context.Context, key string) (cluster.Entry, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(ctx); err != nil {
		return cluster.Entry{}, 0, err
	}
	return s.getLocked(key), s.table.Index, nil
}

func (s *Store) getLocked(key string) cluster.Entry {
	if e := s.table.Live(key, s.live); e != nil {
		return e.Found(e.Value)
	}
	return cluster.Entry{Key: key}
}

// List returns entries.
func (s *Store) List(ctx context.Context, span cluster.Span) (cluster.Page, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(ctx); err != nil {
		return cluster.Page{}, err
	}
	found, more := s.table.List(span, s.live)
	page := cluster.Page{More: more, Index: s.table.Index}
	for _, e := range found {
		page.Entries = append(page.Entries, e.Found(span.Cut(e.Value)))
	}
	return page, nil
}

// Commit applies a transaction.
func (s *Store) Commit(ctx context.Context, txn cluster.Txn) (uint64, error) {
	if err := txn.Check(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(ctx); err != nil {
		return 0, err
	}
	writes, conflict, err := s.table.Plan(txn, s.live)
	if conflict != "" {
		err = &cluster.ConflictError{Entry: s.getLocked(conflict)}
	}
	if err != nil {
		return 0, err
	}
	s.applyLocked(writes)
	return s.table.Index, nil
}

func (s *Store) applyLocked(writes []table.Write) {
	if len(writes) > 0 {
		s.table.Apply(s.table.Index+1, writes, func(i int) []byte { return slices.Clone(writes[i].Value) })
	}
}

// Watch waits for a change.
func (s *Store) Watch(ctx context.Context, prefix string, after uint64) (cluster.Changes, error) {
	return s.table.Await(ctx, &s.mu, s.done, prefix, after, func() error { return s.check(ctx) })
}

// Hold holds a lease.
func (s *Store) Hold(ctx context.Context, owner string) (cluster.Lease, error) {
	if err := cluster.CheckName("lease's owner", owner); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	number := s.table.Lease(owner)
	if number == 0 {
		writes, err := s.table.BeginLease(owner)
		if err != nil {
			return nil, err
		}
		s.applyLocked(writes)
		number = s.table.Index
	}
	s.holders[number]++
	return &lease{owner: owner, release: sync.OnceFunc(func() { s.release(number) })}, nil
}

// release ends one holder's part in a lease. With the last holder the lease's entries are deleted.
func (s *Store) release(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holders[number]--; s.holders[number] == 0 {
		delete(s.holders, number)
		s.applyLocked(s.table.Ended(s.live))
	}
}

// Close ends this opening.
func (s *Store) Close() error {
	s.closed()
	return nil
}

type lease struct {
	owner   string
	release func()
}

func (l *lease) Owner() string     { return l.owner }
func (l *lease) Files() []*os.File { return nil }

func (l *lease) Close() error {
	l.release()
	return nil
}
