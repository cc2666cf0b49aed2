package ratelimit_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/internal/must"
	"taskapi/ratelimit"
)

func newTarpit(t *testing.T, limit int, delay time.Duration) *ratelimit.Tarpit {
	t.Helper()
	return must.Get(ratelimit.NewTarpit(limit, delay))(t)
}

func TestTarpitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tarpit := newTarpit(t, 3, time.Second)
		var wg sync.WaitGroup
		var delayed, atOnce atomic.Int64
		began := time.Now()
		for range 10 {
			wg.Go(func() {
				if tarpit.Delay(t.Context()) {
					delayed.Add(1)
				} else {
					atOnce.Add(1)
				}
			})
		}
		synctest.Wait()
		if atOnce.Load() != 7 || delayed.Load() != 0 {
			t.Errorf("%d went at once, %d were delayed; want 7, and 3 that wait", atOnce.Load(), delayed.Load())
		}
		wg.Wait()
		if took := time.Since(began); took != time.Second || delayed.Load() != 3 {
			t.Errorf("%d were delayed for %v; want 3, 1s", delayed.Load(), took)
		}
		if !tarpit.Delay(t.Context()) {
			t.Error("places that came free are not used")
		}
	})
}

func TestDelayEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tarpit := newTarpit(t, 1, time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if !tarpit.Delay(ctx) || time.Since(began) != time.Second {
			t.Errorf("delayed for %v, want 1s", time.Since(began))
		}
	})
}

func TestTarpitOfNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		for _, tarpit := range []*ratelimit.Tarpit{newTarpit(t, 0, time.Hour), newTarpit(t, 1, 0), new(ratelimit.Tarpit)} {
			tarpit.Delay(t.Context())
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
