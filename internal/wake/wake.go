// Package wake has the signal by which one goroutine tells another that there is something to do, and a pause that ends
// with a context.
package wake

import (
	"context"
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
