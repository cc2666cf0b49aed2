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
