package allocrunner

import "sync"

// running is how far the allocation is, for those who want something of it.
type running struct {
	mu     sync.Mutex // guards the fields below
	begun  bool       // its tasks have been received
	ending bool       // its tasks are being killed
	over   bool
	held   int // restarts of all tasks under way: no gate opens
}

// live reports that the allocation's tasks have been received and are not being killed.
func (r *Runner) live() bool {
	r.running.mu.Lock()
	defer r.running.mu.Unlock()
	return r.running.liveLocked()
}

func (r *running) liveLocked() bool { return r.begun && !r.ending && !r.over }

func (r *Runner) begin() {
	r.running.mu.Lock()
	r.running.begun = true
	r.running.mu.Unlock()
}

// hold keeps every gate shut until unhold; it fails when the allocation does not live.
func (r *Runner) hold() bool {
	r.running.mu.Lock()
	defer r.running.mu.Unlock()
	if !r.running.liveLocked() {
		return false
	}
	r.running.held++
	return true
}

func (r *Runner) unhold() {
	r.running.mu.Lock()
	r.running.held--
	r.running.mu.Unlock()
	r.wake()
}

// finish ends the allocation unless somebody is about to start its tasks anew.
func (r *Runner) finish() bool {
	r.running.mu.Lock()
	defer r.running.mu.Unlock()
	if r.running.held == 0 {
		r.running.over = true
	}
	return r.running.over
}

func (r *Runner) held() bool {
	r.running.mu.Lock()
	defer r.running.mu.Unlock()
	return r.running.held > 0
}
