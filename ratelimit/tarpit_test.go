package ratelimit_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/ratelimit"
)

func newHolder(t *testing.T, limit int, delay time.Duration) *ratelimit.Tarpit {
	t.Helper()
	h, err := ratelimit.NewTarpit(limit, delay)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestHoldIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolder(t, 3, time.Second)
		var wg sync.WaitGroup
		var held, atOnce atomic.Int64
		began := time.Now()
		for range 10 {
			wg.Go(func() {
				if h.Hold(t.Context()) {
					held.Add(1)
				} else {
					atOnce.Add(1)
				}
			})
		}
		synctest.Wait()
		if h.Held() != 3 || atOnce.Load() != 7 || held.Load() != 0 {
			t.Errorf("%d are held, %d went at once, %d were held; want 3, 7, 0", h.Held(), atOnce.Load(), held.Load())
		}
		wg.Wait()
		if took := time.Since(began); took != time.Second || held.Load() != 3 || h.Held() != 0 {
			t.Errorf("%d were held for %v and %d still are; want 3, 1s, 0", held.Load(), took, h.Held())
		}
		if !h.Hold(t.Context()) {
			t.Error("places that came free are not used")
		}
	})
}

func TestHoldEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHolder(t, 1, time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if !h.Hold(ctx) || time.Since(began) != time.Second || h.Held() != 0 {
			t.Errorf("held for %v, %d still are; want 1s, 0", time.Since(began), h.Held())
		}
	})
}

func TestTarpitOfNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		for _, h := range []*ratelimit.Tarpit{newHolder(t, 0, time.Hour), newHolder(t, 1, 0), new(ratelimit.Tarpit)} {
			h.Hold(t.Context())
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v, want no time", took)
		}
	})
	for _, err := range []error{second(ratelimit.NewTarpit(-1, 0)), second(ratelimit.NewTarpit(1, -1))} {
		if !errors.Is(err, ratelimit.ErrConfig) {
			t.Errorf("got %v, want ErrConfig", err)
		}
	}
}

func second(_ *ratelimit.Tarpit, err error) error { return err }
