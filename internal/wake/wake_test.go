package wake_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/internal/must"
	"taskapi/internal/wake"
)

// TestRetry: pauses grow up to a bound, and no two clients wait alike.
func TestRetry(t *testing.T) {
	t.Parallel()
	for failures := range 100 {
		all := map[time.Duration]bool{}
		most := min(time.Second<<min(max(failures-1, 0), 10), 30*time.Second)
		for range 200 {
			d := wake.Retry(failures)
			if all[d] = true; d > most || d < most*7/8 {
				t.Errorf("%v after %d failures", d, failures)
			}
		}
		if len(all) < 2 {
			t.Errorf("clients with %d failures wait alike", failures)
		}
	}
}

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
			if took := time.Since(began); took < most/2 || took >= most {
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
