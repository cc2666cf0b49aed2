package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/clustertest"
	"taskapi/allocrunner/cluster/memory"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
)

// busyStore is a store whose first Holds fail.
type busyStore struct {
	cluster.Store
	fail int
}

func (s *busyStore) Hold(ctx context.Context, owner string) (cluster.Lease, error) {
	if s.fail--; s.fail >= 0 {
		return nil, errors.New("busy")
	}
	return s.Store.Hold(ctx, owner)
}

// TestHoldLater: an allocation that began while the store was away holds its lease as soon as it can.
func TestHoldLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		defer store.Close()
		s := &wiring{cfg: Config{ID: "a", Cluster: &busyStore{store, 3}}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { s.holdLater(ctx); close(ended) }()
		time.Sleep(time.Minute)
		_, err := store.Commit(ctx, clustertest.Txn(clustertest.Leased("k", "v", "a")))
		must.OK(t, err)
		cancel()
		<-ended
		_, err = store.Commit(t.Context(), clustertest.Txn(clustertest.Leased("k", "v", "a")))
		if !errors.Is(err, cluster.ErrLeaseEnded) {
			t.Errorf("after the end: got %v", err)
		}
	})
}

// leftLease notes whether it was left before it was closed.
type leftLease struct {
	cluster.Lease
	left, closed bool
}

func (l *leftLease) Leave() { l.left = !l.closed }

func (l *leftLease) Close() error {
	l.closed = true
	return nil
}

// terminal is a runner whose allocation has ended, or is left running.
type terminal struct {
	interfaces.AllocRunner
	ended bool
}

func (r terminal) Terminal() bool { return r.ended }

// TestLeaseOfWhatRunsOn: the lease of an allocation that is left running is left to the next process.
func TestLeaseOfWhatRunsOn(t *testing.T) {
	for _, ended := range []bool{false, true} {
		lease := &leftLease{}
		s := &wiring{lease: lease, runner: terminal{ended: ended}}
		must.OK(t, s.close())
		if !lease.closed || lease.left == ended {
			t.Errorf("ended is %t: closed is %t, and left %t", ended, lease.closed, lease.left)
		}
	}
}
