package variables

import (
	"context"
	"strings"
	"time"

	"taskapi/allocrunner/cluster"
)

// Concerns reports whether a variable concerns the caller. It must not use the Service.
type Concerns func(namespace, path string) bool

// Everything is the Concerns of a caller whom all variables concern.
func Everything(string, string) bool { return true }

const (
	// endRetry is the pause before the end of a lock is written again after a failure, such as on a full disk.
	endRetry = 10 * time.Second
	// endLook is the longest time between two looks at the ends of locks. Timers stand still while the machine is
	// suspended, but the time of locks goes on.
	endLook = time.Hour
)

// Await returns when one of the variables that List would return was changed or deleted after the index, or may have
// been. The expiry of a lock is a change, too, which a waiting process writes.
func (s *Service) Await(ctx context.Context, namespace, prefix string, after uint64, concerns Concerns) error {
	for {
		next, err := s.endLocks(ctx, namespace, prefix, concerns)
		if err != nil {
			return err
		}
		look, stop := context.WithTimeout(ctx, next)
		after, err = s.awaitChange(look, namespace, prefix, after, concerns)
		over := look.Err() != nil
		stop()
		if err == nil || !over || ctx.Err() != nil {
			return err
		}
	}
}

// EndLocks ends the locks that have expired. Await ends them by itself. EndLocks is for tests and for a clock that
// somebody has moved.
func (s *Service) EndLocks(ctx context.Context) error {
	_, err := s.endLocks(ctx, AllNamespaces, "", Everything)
	return err
}

// awaitChange waits as Await does, but ends no locks. It returns the index to go on from after an error.
func (s *Service) awaitChange(
	ctx context.Context, namespace, prefix string, after uint64, concerns Concerns,
) (uint64, error) {
	for {
		changes, err := s.store.Watch(ctx, prefixOf(namespace, prefix), after)
		if err != nil || changes.Gap {
			return after, err
		}
		for _, key := range changes.Keys {
			if at, ok := placeIn(variablePrefix, key); ok && strings.HasPrefix(at.path, prefix) &&
				concerns(at.namespace, at.path) {
				return after, nil
			}
		}
		after = changes.Index
	}
}

// endLocks ends the expired locks of the variables that List would return, and returns after which time to look again.
func (s *Service) endLocks(ctx context.Context, namespace, prefix string, concerns Concerns) (time.Duration, error) {
	page, err := s.store.List(ctx, cluster.Span{
		Prefix: leasePrefix + strings.TrimPrefix(prefixOf(namespace, prefix), variablePrefix), Only: func(key string) bool {
			at, ok := placeIn(leasePrefix, key)
			return ok && strings.HasPrefix(at.path, prefix) && concerns(at.namespace, at.path)
		}})
	if err != nil {
		return 0, err
	}
	keys := make(map[string]bool, len(page.Entries))
	for _, leased := range page.Entries {
		at, _ := placeIn(leasePrefix, leased.Key)
		keys[at.key()] = true
	}
	there, err := s.entries(ctx, variablePrefix, namespace, prefix, keys)
	if err != nil {
		return 0, err
	}
	next := endLook
	for _, leased := range page.Entries {
		at, _ := placeIn(leasePrefix, leased.Key)
		found, err := s.withLease(newState(at, there[at.key()]), leased)
		if err != nil {
			return 0, err
		}
		now, err := s.clock()
		if err != nil {
			return 0, err
		}
		left := endLook
		switch {
		case !found.hasLock():
		case found.phase == held, found.phase == delayed:
			left = found.Lock.left(found.lease, now)
		default:
			if left, err = s.endLock(ctx, at); err != nil {
				return 0, err
			}
		}
		next = min(next, left)
	}
	return next, nil
}

// hasLock reports whether there is a lock to end. A record of a later version of taskapi is left alone.
func (s state) hasLock() bool { return s.Lock != nil && s.damage == nil }

// endLock ends the lock of a variable if it has expired, and returns after which time to look again.
func (s *Service) endLock(ctx context.Context, at place) (time.Duration, error) {
	found, err := s.look(ctx, at)
	if err != nil {
		return 0, err
	}
	now, err := s.clock()
	switch {
	case err != nil:
		return 0, err
	case !found.hasLock():
		return endLook, nil
	case found.phase == unknown:
		s.begin(ctx, found, now)
		return min(endRetry, found.Lock.left(newLease(found.Lock.ID, now), now)), nil
	case found.phase != free:
		return found.Lock.left(found.lease, now), nil
	}
	select {
	case s.ending <- struct{}{}: // of many who wait for one lock, one writes
		defer func() { <-s.ending }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	left := endLook
	_, _, err = s.change(ctx, at, func(found state, now Moment) (write, error) {
		if !found.hasLock() {
			return write{keep: true}, nil
		}
		if found.locked() { // its renewal was written late
			left = found.Lock.left(found.lease, now)
			return write{keep: true}, nil
		}
		w := write{record: found.record}
		w.record.Lock = nil
		return w, nil
	})
	if err != nil {
		return endRetry, ctx.Err() // the caller may go on waiting while the store can't be written
	}
	return left, nil
}
