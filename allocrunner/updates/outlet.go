package updates

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// An outlet is what leads to one sink.
type outlet struct {
	sink   interfaces.Sink
	logger *slog.Logger
	sooner chan struct{} // has one place; filled when the next batch is due sooner than before
	turn   chan struct{} // has one place; filled while the sink is called

	mu   sync.Mutex // guards what follows; never held during a call of the sink
	book book
}

func newOutlet(sink interfaces.Sink, tick time.Duration, logger *slog.Logger) *outlet {
	return &outlet{sink: sink, logger: logger, sooner: make(chan struct{}, 1), turn: make(chan struct{}, 1), book: book{tick: tick}}
}

func (o *outlet) add(alloc *api.Allocation) {
	o.mu.Lock()
	sooner := o.book.add(alloc, time.Now())
	o.mu.Unlock()
	if sooner {
		o.wake()
	}
}

// wake makes run look anew at when the next batch is due.
func (o *outlet) wake() {
	select {
	case o.sooner <- struct{}{}:
	default: // run has not yet looked since the last time
	}
}

// run delivers each batch when it is due, until ctx ends.
func (o *outlet) run(ctx context.Context) {
	for o.wait(ctx) {
		// A failure is noted in the book, which makes the batch due again.
		_ = o.deliver(ctx)
	}
}

// wait returns true when a batch is due, and false when ctx has ended. It sets no timer while nothing is pending.
func (o *outlet) wait(ctx context.Context) bool {
	for ctx.Err() == nil {
		o.mu.Lock()
		due := o.book.due
		o.mu.Unlock()
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
		case <-o.sooner:
		case <-at:
		}
	}
	return false
}

// deliver gives the sink what is pending, when it is not busy with an earlier batch any more.
func (o *outlet) deliver(ctx context.Context) error {
	select {
	case o.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait for an earlier call: %w", ctx.Err())
	}
	defer func() { <-o.turn }()
	o.mu.Lock()
	batch := o.book.take()
	o.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	err := o.sink.PutAllocs(ctx, batch)
	o.settle(batch, err, ctx.Err() != nil)
	return err
}

// settle notes how a batch went. A call that failed because its time was over says nothing about the sink.
func (o *outlet) settle(batch []*api.Allocation, err error, ended bool) {
	o.mu.Lock()
	var failures int
	switch {
	case err == nil:
		failures = o.book.delivered(batch)
	case ended:
		o.book.putBack(batch, time.Now())
	default:
		failures = o.book.failed(batch, time.Now())
	}
	o.mu.Unlock()
	if err != nil {
		o.wake() // the batch may have been taken by flush, while run saw nothing to wait for
	}
	switch {
	case err == nil && failures > 0:
		o.logger.Info("a sink takes allocation updates again", "failures", failures)
	case err != nil && failures == 1:
		o.logger.Warn("a sink does not take allocation updates; they are kept and tried again", "error", err)
	}
}

// flush delivers what is pending until the sink has taken it or ctx ends.
func (o *outlet) flush(ctx context.Context) error {
	for {
		err := o.deliver(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(o.backoff()):
		}
		if ctx.Err() != nil {
			return fmt.Errorf("hand allocation updates to sink %q: %w; last: %w", o.sink.Name(), ctx.Err(), err)
		}
	}
}

// backoff is how long it is until the sink may be tried again.
func (o *outlet) backoff() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Until(o.book.retry)
}
