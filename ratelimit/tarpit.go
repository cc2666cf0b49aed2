package ratelimit

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// Tarpit slows a flood down: it holds each refused answer back for a while, so that a caller that waits for its answers asks less
// often. What it holds costs a goroutine and a connection, and so it holds no more than Max at once; the
// answers beyond go out at once.
type Tarpit struct {
	limit int64
	delay time.Duration
	held  atomic.Int64
}

// NewTarpit returns a Tarpit of at most limit answers, each for delay; a limit or a delay of 0 holds none. Negative ones are ErrConfig.
func NewTarpit(limit int, delay time.Duration) (*Tarpit, error) {
	if limit < 0 || delay < 0 {
		return nil, fmt.Errorf("%w: hold %d answers for %v each", ErrConfig, limit, delay)
	}
	return &Tarpit{limit: int64(limit), delay: delay}, nil
}

// Hold returns true after the delay, or earlier if ctx ends; it returns false at once if as many are held as may be. A
// RetryAfter to be sent is best asked for afterwards, as some of it has passed by then.
func (h *Tarpit) Hold(ctx context.Context) bool {
	if h.held.Add(1) > h.limit {
		h.held.Add(-1)
		return false
	}
	defer h.held.Add(-1)
	t := time.NewTimer(h.delay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return true
}

// Held returns how many answers are held now.
func (h *Tarpit) Held() int { return int(min(h.held.Load(), h.limit)) }
