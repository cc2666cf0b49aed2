package wake_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/internal/must"
	"taskapi/internal/wake"
)

// TestBackoff: pauses double up to a bound, are cut by up to a half, and begin again.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := wake.Backoff{First: time.Second, Last: 5 * time.Second}
		for _, seconds := range []int{1, 2, 4, 5, 5, 0, 1, 2} {
			most := time.Duration(seconds) * time.Second
			if most == 0 {
				b.Reset()
				continue
			}
			began := time.Now()
			must.OK(t, b.Sleep(t.Context()))
			if took := time.Since(began); took < most/2 || took > most {
				t.Errorf("waited %v, want %v to %v", took, most/2, most)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if b.Sleep(ctx) == nil {
			t.Error("an ended context waits")
		}
	})
}
