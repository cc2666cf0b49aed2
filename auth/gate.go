package auth

import (
	"sync"
	"time"
)

const (
	// logsPerSecond is how many refusals are logged.
	logsPerSecond = 1
	// auditsPerSecond is how many denials for each Reason go into the audit log: a line has up to 1 KiB, so that a flood for
	// every reason at once writes some 100 KiB/s, and a flood of one kind hides no other.
	auditsPerSecond = 20
)

// gate lets some events of a second through and counts the others. The zero gate is ready.
type gate struct {
	mu         sync.Mutex
	start      time.Time // of the second; guarded by mu, as are the others
	passed     int
	suppressed uint64
}

// pass reports whether this event is among the limit of its second, and if so, how many were suppressed before it.
func (g *gate) pass(now time.Time, limit int) (suppressed uint64, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if age := now.Sub(g.start); age >= time.Second || age < 0 {
		g.start, g.passed = now, 0
	}
	if g.passed >= limit {
		g.suppressed++
		return 0, false
	}
	g.passed++
	suppressed, g.suppressed = g.suppressed, 0
	return suppressed, true
}
