package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster"
)

// The process that writes has the flock(2) of the file named lock. The file holds the number of the process that had it
// last, and is empty until there is a log.

// lockTimeout is how long a Commit waits for others: each takes milliseconds, unless a disk hangs or a process is
// stopped.
const lockTimeout = 10 * time.Second

// tryEvery is how often the process whose turn it is tries the lock: about the time that a Commit takes. The processes
// behind it look less often, in proportion to their place.
const tryEvery = 200 * time.Microsecond

// acquire takes the writer lock: first among the goroutines of this process, then among processes.
func (s *Store) acquire(ctx context.Context, most time.Duration) (release func(), err error) {
	since := now()
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	select {
	case s.writer <- struct{}{}:
	case <-s.done:
		return nil, errClosed
	case <-limited.Done():
		return nil, s.waited(ctx)
	}
	if err := s.flock(ctx, since, limited.Done()); err != nil {
		<-s.writer
		return nil, err
	}
	return func() {
		_ = unix.Flock(int(s.lock.Fd()), unix.LOCK_UN) // it can't fail on an open file
		<-s.writer
	}, nil
}

// flock takes the lock of processes for a writer that began to wait at a time.
func (s *Store) flock(ctx context.Context, since uint64, limit <-chan struct{}) error {
	if waiting, _ := s.queue.ahead(math.MaxUint64); waiting == 0 {
		if locked, err := s.tryFlock(); locked || err != nil {
			return err
		}
	}
	s.queue.enter(since)
	defer s.queue.write(0)
	for {
		ahead := s.queue.look()
		if ahead == 0 {
			if locked, err := s.tryFlock(); locked || err != nil {
				return err
			}
		}
		select {
		case <-time.After(time.Duration(1+ahead) * tryEvery):
		case <-s.done:
			return errClosed
		case <-limit:
			return s.waited(ctx)
		}
	}
}

func (s *Store) tryFlock() (locked bool, err error) {
	err = unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EWOULDBLOCK), errors.Is(err, unix.EINTR):
		return false, nil
	}
	return false, unavailable(s.path("lock"), err)
}

// waited is the error of a wait for the lock.
func (s *Store) waited(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	b := make([]byte, 20)
	n, _ := s.lock.ReadAt(b, 0) // after an error no process is named
	pid := string(bytes.TrimSpace(b[:n]))
	err := fmt.Errorf("%w: process %s has had the lock of %s for too long; let it go on if it is stopped, or end it",
		cluster.ErrUnavailable, pid, s.dir)
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", err, ctx.Err())
	}
	return err
}

// sign writes this process's number into the lock. If that fails, the error of a process that has waited too long names
// another process.
func (s *Store) sign() {
	_, _ = s.lock.WriteAt(fmt.Appendf(nil, "%-19s\n", strconv.Itoa(os.Getpid())), 0)
}
