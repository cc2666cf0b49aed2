package allocations

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/internal/route"
)

// unmeasured is an allocation whose use can't be measured. given is closed when nobody waits for that any more.
type unmeasured struct {
	route.Alloc
	given chan struct{}
}

func (u unmeasured) Stats(ctx context.Context, _ time.Duration) (<-chan *api.AllocResourceUsage, error) {
	samples := make(chan *api.AllocResourceUsage)
	context.AfterFunc(ctx, func() {
		close(samples)
		close(u.given)
	})
	return samples, nil
}

// TestStatsThatCannotBeHad: the request ends, in bounded time, with words; and leaves no stream behind.
func TestStatsThatCannotBeHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := unmeasured{given: make(chan struct{})}
		_, err := latestUsage(t.Context(), alloc)
		if err == nil || err.Error() != "what the tasks use can't be measured for now: try again" {
			t.Errorf("error = %v", err)
		}
		<-alloc.given
	})
}
