// Package wake has the signal by which one goroutine tells another that there is something to do, a pause that ends
// with a context, and the pauses between attempts.
package wake

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"
)

// Signal wakes the goroutine that receives from it. Make it with New.
type Signal chan struct{}

// New returns a signal that has not been sent.
func New() Signal { return make(Signal, 1) }

// Send wakes the receiver, now or when it next receives. It never waits. Calls before the receiver looks count as one.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Sleep waits for a time, or until ctx ends. Errors: ctx's.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Backoff has pauses between attempts. They double from First to Last, and each is cut by up to a half at random: after
// a server's return, its clients don't come in one moment.
type Backoff struct {
	First, Last time.Duration

	next time.Duration // zero for First
}

// Sleep waits for the next pause, or until ctx ends. Errors: ctx's.
func (b *Backoff) Sleep(ctx context.Context) error {
	pause := cmp.Or(b.next, b.First)
	b.next = min(2*pause, b.Last)
	return Sleep(ctx, pause/2+rand.N(pause/2)) //nolint:gosec // no secret depends on it
}

// Reset begins with First again, after an attempt that has succeeded.
func (b *Backoff) Reset() { b.next = 0 }

const (
	firstRetry  = time.Second
	longestWait = 30 * time.Second
)

// Retry returns the pause after failures in a row.
func Retry(failures int) time.Duration {
	return Jitter(min(firstRetry<<min(max(failures-1, 0), 10), longestWait))
}

// Jitter shortens a time at random, so that many clients wait differently.
func Jitter(d time.Duration) time.Duration {
	return d - rand.N(max(d/8, 0)+1) //nolint:gosec // no secret depends on it
}
