package updates

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/semaphore"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/wake"
)

// sinkQueue delivers to one sink.
type sinkQueue struct {
	sink   interfaces.Sink
	logger *slog.Logger
	sooner wake.Signal         // the next batch is due sooner than before
	busy   *semaphore.Weighted // held while the sink is called

	mu    sync.Mutex // guards what follows; never held during a call of the sink
	batch batch
}

func (q *sinkQueue) add(alloc *api.Allocation) {
	q.mu.Lock()
	sooner := q.batch.add(alloc, time.Now())
	q.mu.Unlock()
	if sooner {
		q.sooner.Send()
	}
}

// run delivers each batch when it is due, until ctx ends.
func (q *sinkQueue) run(ctx context.Context) {
	for q.wait(ctx) {
		// A failure makes the batch due again.
		_ = q.deliver(ctx)
	}
}

// wait returns true when a batch is due, and false when ctx has ended. It sets no timer while nothing is pending.
func (q *sinkQueue) wait(ctx context.Context) bool {
	for ctx.Err() == nil {
		q.mu.Lock()
		due := q.batch.due
		q.mu.Unlock()
		var at <-chan time.Time
		if !due.IsZero() {
			left := time.Until(due)
			if left <= 0 {
				return true
			}
			at = time.After(left)
		}
		select {
		case <-ctx.Done():
		case <-q.sooner:
		case <-at:
		}
	}
	return false
}

// deliver waits for the sink to finish an earlier batch, and gives it what is pending.
func (q *sinkQueue) deliver(ctx context.Context) error {
	if err := q.busy.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("wait for an earlier call: %w", err)
	}
	defer q.busy.Release(1)
	q.mu.Lock()
	allocs := q.batch.take()
	q.mu.Unlock()
	if len(allocs) == 0 {
		return nil
	}
	err := q.sink.PutAllocs(ctx, allocs)
	q.finish(allocs, err, ctx.Err() != nil)
	return err
}

// finish notes the result of a delivery. A call that failed because its ctx had ended says nothing about the sink.
func (q *sinkQueue) finish(allocs []*api.Allocation, err error, ended bool) {
	q.mu.Lock()
	var failures int
	switch {
	case err == nil:
		failures = q.batch.delivered(allocs)
	case ended:
		q.batch.putBack(allocs, time.Now())
	default:
		failures = q.batch.failed(allocs, time.Now())
	}
	q.mu.Unlock()
	if err != nil {
		q.sooner.Send() // flush may have taken the batch while run saw nothing pending
	}
	switch {
	case err == nil && failures > 0:
		q.logger.Info("a sink takes allocation updates again", "failures", failures)
	case err != nil && failures == 1:
		q.logger.Warn("a sink does not take allocation updates; they are kept and tried again", "error", err)
	}
}

// flush delivers what is pending until the sink has taken it or ctx ends.
func (q *sinkQueue) flush(ctx context.Context) error {
	for {
		err := q.deliver(ctx)
		if err == nil {
			return nil
		}
		if wake.Sleep(ctx, q.backoff()) != nil {
			return fmt.Errorf("hand allocation updates to sink %q: %w; last: %w", q.sink.Name(), ctx.Err(), err)
		}
	}
}

// backoff returns how long it is until the sink may be tried again.
func (q *sinkQueue) backoff() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return time.Until(q.batch.retry)
}
