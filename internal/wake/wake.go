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

// Backoff has the pauses between attempts of which the last ones failed. They double from First to Last, and each is
// cut by up to a half at random: after a server's return, its clients don't come in one moment.
type Backoff struct {
	First, Last time.Duration // zero for a second and half a minute
	Failures    int           // since the last success
}

// Pause counts a failure, and returns the pause after it.
func (b *Backoff) Pause() time.Duration {
	pause := min(cmp.Or(b.First, time.Second)<<min(b.Failures, 16), cmp.Or(b.Last, 30*time.Second))
	b.Failures++
	return pause - rand.N(pause/2) //nolint:gosec // no secret depends on it
}

// Sleep counts a failure, and waits for the pause after it, or until ctx ends. Errors: ctx's.
func (b *Backoff) Sleep(ctx context.Context) error { return Sleep(ctx, b.Pause()) }

// Reset begins with First again, after an attempt that has succeeded.
func (b *Backoff) Reset() { b.Failures = 0 }

// Jitter shortens a time at random, so that many clients wait differently.
func Jitter(d time.Duration) time.Duration {
	return d - rand.N(max(d/8, 0)+1) //nolint:gosec // no secret depends on it
}
