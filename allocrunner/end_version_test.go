package allocrunner_test

import (
	"context"
	"testing"

	"taskapi/internal/must"
)

// TestTheEndIsAVersion: a client that waits for the next version is woken when the allocation has ended, not only when
// its last task has: its tokens are refused from then on. Which of the two a client meets is chance, so several try.
func TestTheEndIsAVersion(t *testing.T) {
	t.Parallel()
	for range 8 {
		r := run(t, "batch", shell("t", "exit 0"))
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		for index := uint64(0); !r.runner.Terminal() && ctx.Err() == nil; {
			index = r.runner.Wait(ctx, index).ModifyIndex
		}
		if ctx.Err() != nil {
			t.Errorf("nobody is woken at the end of %+v", r.runner.Alloc().TaskStates["t"])
		}
		cancel()
		must.OK(t, r.end())
	}
}
