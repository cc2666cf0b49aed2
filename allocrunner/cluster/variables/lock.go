package variables

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"
)

// Nomad's bounds and defaults of locks.
const (
	minTTL       = 10 * time.Second
	maxTTL       = 24 * time.Hour
	maxDelay     = maxTTL // Nomad has no limit: there a delay can keep others out for centuries
	defaultTTL   = api.DefaultLockTTL
	defaultDelay = api.DefaultLockDelay
	maxLockID    = 128 // a UUID has 36
)

// Acquire locks a variable, which it makes if there is none, and returns the variable with its lock. Items of v replace
// those that are there; without any, these stay. The holder may acquire the lock again. Errors: *ConflictError,
// ErrFull.
func (s *Service) Acquire(ctx context.Context, v *api.Variable) (*api.Variable, uint64, error) {
	at := place{v.Namespace, v.Path}
	wanted, err := checkAcquire(v)
	if err != nil {
		return nil, 0, err
	}
	sealed, err := s.seal(at, v.Items)
	if err != nil {
		return nil, 0, err
	}
	return s.change(ctx, at, func(found state, now Moment) (write, error) {
		if found.locked() && (!found.heldBy(v.LockID()) || found.phase == delayed) {
			return write{}, &ConflictError{Variable: found.nothing(), Locked: true}
		}
		w := write{record: found.next(sealed, s.writer), items: v.Items, lease: new(newLease(wanted.ID, now))}
		if len(v.Items) == 0 && found.exists() && found.damage == nil {
			w.record.sealed, w.record.Writer = found.sealed, found.Writer
		}
		w.record.Lock = &wanted
		return w, nil
	})
}

// Renew starts the TTL of a held lock again, and returns the variable's metadata. Errors: ErrNotFound, ErrNotLocked,
// ErrLocked.
func (s *Service) Renew(ctx context.Context, namespace, path, lockID string) (*api.VariableMetadata, uint64, error) {
	if lockID == "" {
		return nil, 0, invalid("missing lock ID")
	}
	if err := errors.Join(checkNamespace(namespace), CheckPath(path)); err != nil {
		return nil, 0, err
	}
	v, index, err := s.change(ctx, place{namespace, path}, func(found state, _ Moment) (write, error) {
		return write{renew: true}, found.canRenew(lockID)
	})
	if err != nil {
		return nil, 0, err
	}
	return metadataOf(v), index, nil
}

func (s state) canRenew(lockID string) error {
	switch {
	case !s.exists():
		return ErrNotFound
	case !s.locked():
		return ErrNotLocked
	case !s.heldBy(lockID), s.phase == delayed:
		return ErrLocked
	}
	return nil
}

// Release ends a lock at once, without its delay. The items stay. Errors: ErrNotFound, ErrNotLocked, *ConflictError.
func (s *Service) Release(ctx context.Context, namespace, path, lockID string) (*api.Variable, uint64, error) {
	if lockID == "" {
		return nil, 0, invalid("missing lock information")
	}
	return s.release(ctx, namespace, path, func(of state) bool { return of.heldBy(lockID) })
}

// Unlock ends any holder's lock, and the delay after it. The holder learns of it at the next renewal. Errors:
// ErrNotFound, ErrNotLocked.
func (s *Service) Unlock(ctx context.Context, namespace, path string) error {
	_, _, err := s.release(ctx, namespace, path, func(state) bool { return true })
	return err
}

func (s *Service) release(
	ctx context.Context, namespace, path string, may func(state) bool,
) (*api.Variable, uint64, error) {
	if err := errors.Join(checkNamespace(namespace), CheckPath(path)); err != nil {
		return nil, 0, err
	}
	return s.change(ctx, place{namespace, path}, func(found state, _ Moment) (write, error) {
		switch {
		case !found.exists():
			return write{}, ErrNotFound
		case !found.locked():
			return write{}, ErrNotLocked
		case !may(found):
			return write{}, &ConflictError{Variable: found.nothing(), Locked: true}
		}
		w := write{record: found.record}
		w.record.Lock = nil
		return w, nil
	})
}

// checkAcquire returns the lock that v asks for, with the defaults.
func checkAcquire(v *api.Variable) (lock, error) {
	if err := errors.Join(checkNamespace(v.Namespace), checkItems(v.Items), CheckPath(v.Path)); err != nil {
		return lock{}, err
	}
	wanted := lock{ID: uuid.NewString(), TTL: defaultTTL, Delay: defaultDelay}
	if v.Lock == nil {
		return wanted, nil
	}
	if len(v.Lock.ID) > maxLockID {
		return lock{}, invalid("the lock's ID has %d characters, and at most %d are allowed", len(v.Lock.ID), maxLockID)
	}
	if v.Lock.ID != "" {
		wanted.ID = v.Lock.ID
	}
	if err := setDuration(&wanted.TTL, v.Lock.TTL); err != nil {
		return lock{}, err
	}
	if err := setDuration(&wanted.Delay, v.Lock.LockDelay); err != nil {
		return lock{}, err
	}
	if wanted.TTL > maxTTL || wanted.TTL < minTTL {
		return lock{}, invalid("TTL must be between 10 seconds and 24 hours")
	}
	if wanted.Delay > maxDelay {
		return lock{}, invalid("LockDelay must be at most 24 hours, not %s", v.Lock.LockDelay)
	}
	return wanted, nil
}

// setDuration sets a duration to what a text says. Zero and an empty text leave it as it is.
func setDuration(to *time.Duration, text string) error {
	if text == "" {
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return invalid("%v", err)
	}
	if d < 0 {
		return invalid("Lock delay and TTL must be positive")
	}
	if d > 0 {
		*to = d
	}
	return nil
}
