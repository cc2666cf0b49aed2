package taskrunner

import (
	"context"
	"errors"
	"time"

	"taskapi/allocrunner/drivers"
	"taskapi/internal/wake"
)

// listen posts what the run says about itself, until the run or ctx ends.
func (r *Runner) listen(ctx context.Context, run drivers.Run) {
	for seen := uint64(0); ; {
		notice, ok := r.notice(ctx, run, seen)
		if !ok {
			return
		}
		seen = notice.Seq
		r.postFromEffect(notified{run, notice})
	}
}

// guard posts that the run is silent, once it has given no sign of life for that long. The keeper counts the time, in
// which this program may not run.
func (r *Runner) guard(ctx context.Context, run drivers.Run, interval time.Duration) {
	for {
		notice, ok := r.notice(ctx, run, 0)
		if !ok || notice.Stopping {
			return
		}
		if notice.Silent >= interval {
			r.postFromEffect(silent{run})
			return
		}
		if wake.Sleep(ctx, interval-notice.Silent) != nil {
			return
		}
	}
}

// notice returns the run's next notice after seen, and false when there are no more.
func (r *Runner) notice(ctx context.Context, run drivers.Run, seen uint64) (notice drivers.Notice, ok bool) {
	notifier, ok := run.(drivers.Notifier)
	if !ok {
		return notice, false
	}
	gone := false
	r.untilDone(ctx, "it is not known whether the task is ready; trying again", func() (err error) {
		notice, err = notifier.Notice(ctx, seen)
		for _, over := range []error{drivers.ErrNotRunning, drivers.ErrLost, drivers.ErrClosed, drivers.ErrReplaced} {
			gone = gone || errors.Is(err, over)
		}
		if gone {
			return nil
		}
		return err
	})
	return notice, !gone && ctx.Err() == nil
}
