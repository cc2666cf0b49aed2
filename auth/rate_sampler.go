package auth

import (
	"sync"
	"time"
)

// logsPerSecond is how many lines of one kind are logged.
const logsPerSecond = 1

// rateSampler lets some events of each second pass and counts the others. Its zero value is ready.
type rateSampler struct {
	mu         sync.Mutex
	start      time.Time // of the second; guarded by mu, as are the others
	passed     int
	suppressed uint64
}

// pass reports whether this event is among the logsPerSecond of its second, and if so, how many were suppressed before it.
func (s *rateSampler) pass(now time.Time) (suppressed uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if age := now.Sub(s.start); age >= time.Second || age < 0 {
		s.start, s.passed = now, 0
	}
	if s.passed >= logsPerSecond {
		s.suppressed++
		return 0, false
	}
	s.passed++
	suppressed, s.suppressed = s.suppressed, 0
	return suppressed, true
}
