package wake_test

import (
	"testing"
	"time"

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
