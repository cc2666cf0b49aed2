package allocations

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
)

// unmeasured is an allocation whose use can't be measured. It is closed when nobody waits for that any more.
type unmeasured chan struct{}

func (u unmeasured) Stats(ctx context.Context, _ time.Duration) (<-chan *api.AllocResourceUsage, error) {
	samples := make(chan *api.AllocResourceUsage)
	context.AfterFunc(ctx, func() {
		close(samples)
		close(u)
	})
	return samples, nil
}

// TestStatsThatCannotBeHad: the request ends, in bounded time, with words; and leaves no stream behind.
func TestStatsThatCannotBeHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(unmeasured)
		_, err := latestUsage(t.Context(), ended)
		if err == nil || err.Error() != "what the tasks use can't be measured for now: try again" {
			t.Errorf("error = %v", err)
		}
		<-ended
	})
}
