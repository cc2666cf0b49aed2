package ratelimit

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// Tarpit slows a flood down: it delays refused answers, so that a caller who waits for its answers sends fewer requests. Each delayed
// answer costs a goroutine and a connection, so that their number is limited; the answers beyond go out at once.
type Tarpit struct {
	limit   int64
	delay   time.Duration
	delayed atomic.Int64
}

// NewTarpit returns a Tarpit of at most limit answers, each for delay; a limit or a delay of 0 delays none. Negative ones are ErrConfig.
func NewTarpit(limit int, delay time.Duration) (*Tarpit, error) {
	if limit < 0 || delay < 0 {
		return nil, fmt.Errorf("%w: delay %d answers for %v each", ErrConfig, limit, delay)
	}
	return &Tarpit{limit: int64(limit), delay: delay}, nil
}

// Delay returns true after the delay, or earlier if ctx ends; it returns false at once if the limit is reached. Compute a RetryAfter
// afterwards: some of it has passed by then.
func (t *Tarpit) Delay(ctx context.Context) bool {
	defer t.delayed.Add(-1)
	if t.delayed.Add(1) > t.limit {
		return false
	}
	select {
	case <-time.After(t.delay):
	case <-ctx.Done():
	}
	return true
}
