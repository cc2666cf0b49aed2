// Package wake has the signal by which one goroutine tells another that there is something to do.
package wake

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
