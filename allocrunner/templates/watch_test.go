package templates

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"

	"taskapi/allocrunner/cluster"
	"taskapi/internal/same"
)

// silentStore is a store that does not answer.
type silentStore struct{ cluster.Store }

func (silentStore) List(ctx context.Context, _ cluster.Span) (cluster.Page, error) {
	<-ctx.Done()
	return cluster.Page{}, ctx.Err()
}

// TestSilentStore: a task whose templates wait for the store does not hold up another task of the allocation that
// starts or ends.
func TestSilentStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWatch(silentStore{}, slog.New(slog.DiscardHandler))
		waiting := &manager{}
		w.add(waiting)
		ctx, cancel := context.WithCancel(t.Context())
		followed := make(chan error)
		go func() { followed <- w.follow(ctx, "vars/") }()
		synctest.Wait()
		if !w.mu.TryLock() {
			t.Error("another task waits, too")
		} else {
			w.mu.Unlock()
		}
		cancel()
		same.Error(t, context.Canceled, <-followed)
		w.remove(waiting)
	})
}
