package disk

import (
	"cmp"
	"context"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/internal/table"
	"taskapi/internal/filewatch"
)

const (
	// leaseInterval is how often leases are looked up: the kernel does not announce the end of one.
	leaseInterval = time.Second
	// leaseTimeout bounds the wait for the lock that deletes the entries of an ended lease: another process can do it
	// as well.
	leaseTimeout = 500 * time.Millisecond
	// pollInterval is how often the log is looked at without inotify: a user may have a bounded number of instances.
	pollInterval = 20 * time.Millisecond
)

// follow keeps the table up to date for those who wait, and deletes the entries of ended leases, until the store is
// closed. It sleeps while nothing changes and there are no leases.
func (s *Store) follow() {
	var watch *filewatch.Watch
	defer func() { watch.Close() }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	looked := time.Time{} // when leases were looked up last
	for {
		next := s.catchUp(&watch)
		if time.Since(looked) >= leaseInterval {
			s.endLeases()
			looked = time.Now()
		}
		timer.Reset(next)
		select {
		case <-watch.Changed():
		case <-timer.C:
		case <-s.done:
			return
		}
	}
}

// catchUp brings the table up to date with the log, watches the log, and returns how long follow may sleep at most.
func (s *Store) catchUp(watch **filewatch.Watch) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		before := s.log
		if s.failed = s.advanceLocked(); s.failed != nil {
			s.table.WakeAll()
			return leaseInterval
		}
		if *watch != nil && before == s.log && s.watched == s.log {
			break
		}
		(*watch).Close()
		var err error
		if *watch, err = s.watcher.File(s.log); err != nil {
			return pollInterval
		}
		s.watched = s.log // changes before the watch began are looked for once more
	}
	if s.table.HasLeases() {
		return leaseInterval
	}
	return time.Hour
}

// endLeases deletes the entries of leases that have ended.
func (s *Store) endLeases() {
	s.mu.RLock()
	ended := len(s.table.Ended(s.live())) > 0
	s.mu.RUnlock()
	if !ended {
		return
	}
	// When that fails, reads leave the entries out meanwhile.
	_, _ = s.write(context.Background(), leaseTimeout,
		func() ([]table.Write, error) { return s.table.Ended(s.live()), nil })
}

// Watch waits for a change.
func (s *Store) Watch(ctx context.Context, prefix string, after uint64) (cluster.Changes, error) {
	if err := s.open(ctx); err != nil {
		return cluster.Changes{}, err
	}
	looked := false
	return s.table.Await(ctx, &s.mu, s.done, prefix, after, func() error {
		select {
		case <-s.done:
			return errClosed
		default:
		}
		if err := ctx.Err(); err != nil || looked {
			return cmp.Or(err, s.failed)
		}
		looked = true // from now on follow keeps the table up to date
		return s.advanceLocked()
	})
}
