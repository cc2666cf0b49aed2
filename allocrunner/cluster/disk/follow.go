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
	// leaseInterval is how often a process looks up the leases: the kernel does not announce the end of one. It does not
	// when another process has done so within lookedTime.
	leaseInterval = time.Second
	lookedTime    = leaseInterval / 2
	// leaseTimeout bounds the wait for the lock that deletes the entries of an ended lease: another process can do it
	// as well.
	leaseTimeout = 500 * time.Millisecond
	// The log is looked at again and again without inotify: a user may have a bounded number of instances. The pauses
	// grow while nothing changes, since many processes may have to.
	firstPoll, lastPoll = 20 * time.Millisecond, 500 * time.Millisecond
)

// follow keeps the table up to date for those who wait, and deletes the entries of ended leases, until the store is
// closed. It sleeps while nothing changes and there are no leases.
func (s *Store) follow() {
	var watch *filewatch.Watch
	defer func() { watch.Close() }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	looked := time.Time{} // when leases were looked up last
	poll := firstPoll
	for {
		next := s.catchUp(&watch, &poll)
		if time.Since(looked) >= leaseInterval {
			if !s.looked(now()) && s.endLeases() {
				s.noteLook(now())
			}
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
// poll is the pause after a look without inotify.
func (s *Store) catchUp(watch **filewatch.Watch, poll *time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	for index := s.table.Index; ; {
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
			if *poll = min(2**poll, lastPoll); s.table.Index != index {
				*poll = firstPoll
			}
			return *poll
		}
		s.watched = s.log // changes before the watch began are looked for once more
	}
	if s.table.HasLeases() {
		return leaseInterval
	}
	return time.Hour
}

// endLeases deletes the entries of leases that have ended, and reports whether it has. When it fails, reads leave the
// entries out meanwhile.
func (s *Store) endLeases() bool {
	s.mu.RLock()
	failed, ended := s.failed != nil, len(s.table.Ended(s.live())) > 0
	s.mu.RUnlock()
	if failed || !ended {
		return !failed
	}
	_, err := s.write(context.Background(), leaseTimeout,
		func() ([]table.Write, error) { return s.table.Ended(s.live()), nil })
	return err == nil
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
