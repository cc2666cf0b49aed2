package auth

import (
	"sync"
	"time"
)

// logsPerSecond is how many lines of one kind are logged.
const logsPerSecond = 1

// gate lets some events of a second through and counts the others. The zero gate is ready.
type rateSampler struct {
	mu         sync.Mutex
	start      time.Time // of the second; guarded by mu, as are the others
	passed     int
	suppressed uint64
}

// pass reports whether this event is among the limit of its second, and if so, how many were suppressed before it.
func (g *rateSampler) pass(now time.Time, limit int) (suppressed uint64, ok bool) {
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
