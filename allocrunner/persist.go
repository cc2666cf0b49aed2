package allocrunner

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// persistRetry is the pause after a failed write of the state, which is most often a full disk: long enough to cost nothing,
// short enough that little is lost once there is room again.
const persistRetry = 2 * time.Second

// persist writes each new snapshot to the state, the latest one last. Changes that come while one is written are written as one.
// A failed write is tried again for as long as the allocation runs: the tasks never wait for the disk.
func (r *Runner) persist(ctx context.Context) {
	if r.cfg.State == nil {
		return
	}
	var written uint64
	failing := false
	for ctx.Err() == nil {
		alloc := r.Wait(ctx, written)
		if alloc.ModifyIndex <= written {
			break
		}
		if err := r.cfg.State.Put(r.saved(alloc)); err != nil {
			if !failing {
				r.logger.Warn("state could not be written; it is kept in memory and tried again: make room on the disk", "error", err)
			}
			failing = true
			pause(ctx, persistRetry)
			continue
		}
		if failing {
			r.logger.Info("state is written again")
		}
		written, failing = alloc.ModifyIndex, false
	}
}

// persistNow writes how the allocation stands.
func (r *Runner) persistNow() error {
	if r.cfg.State == nil {
		return nil
	}
	return r.cfg.State.Put(r.saved(r.Alloc()))
}

// saved is the allocation with what another runner has to know to go on with it.
func (r *Runner) saved(alloc *api.Allocation) interfaces.Saved {
	saved := interfaces.Saved{Alloc: alloc, Tasks: map[string]interfaces.SavedTask{}, Over: r.Over()}
	for _, t := range r.tasks {
		saved.Tasks[t.Name()] = t.Saved()
	}
	return saved
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
