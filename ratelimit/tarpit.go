package ratelimit

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"taskapi/internal/wake"
)

// Tarpit delays refused answers, so that a caller who waits for answers sends fewer requests. Each delayed answer costs
// a goroutine and a connection, so their number is limited, and answers beyond go out at once.
type Tarpit struct {
	limit   int64
	delay   time.Duration
	delayed atomic.Int64
}

// NewTarpit returns a Tarpit that delays at most limit answers at a time. A limit or a delay of 0 delays none, and a
// negative one is ErrConfig.
func NewTarpit(limit int, delay time.Duration) (*Tarpit, error) {
	if limit < 0 || delay < 0 {
		return nil, fmt.Errorf("%w: delay %d answers for %v each", ErrConfig, limit, delay)
	}
	return &Tarpit{limit: int64(limit), delay: delay}, nil
}

// Delay returns true after the delay, or earlier if ctx ends. It returns false at once if the limit is reached. Compute
// a RetryAfter afterwards, since time has passed.
func (t *Tarpit) Delay(ctx context.Context) bool {
	defer t.delayed.Add(-1)
	if t.delayed.Add(1) > t.limit {
		return false
	}
	_ = wake.Sleep(ctx, t.delay) // a caller that is gone needs no delay
	return true
}
