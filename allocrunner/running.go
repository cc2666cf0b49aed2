package allocrunner

import (
	"context"
	"slices"
	"sync"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/internal/taskrunner"
)

// running is how far the allocation is, for those who want something of it.
type running struct {
	gates sync.Mutex // held while gates open, and while that is forbidden

	mu     sync.Mutex // guards the fields below
	begun  bool       // its tasks have been received
	ending bool       // its tasks are being killed
	over   bool
	left   bool // to another runner
	held   int  // restarts of all tasks under way: no gate opens

	last sync.Once // tells poststop tasks that they have no other interval

	carried sync.WaitGroup // what carry does; nothing is added once the allocation is over or left
}

// live reports that the allocation's tasks have been received and are not being killed.
func (r *Runner) live() bool {
	r.running.mu.Lock()
	defer r.running.mu.Unlock()
	return r.running.liveLocked()
}

func (r *running) liveLocked() bool { return r.begun && !r.ending && !r.over }

// carry does what must not stop half way when its caller goes away. The caller waits for as long as ctx lasts, and Run for as long as
// it takes. Errors: interfaces.ErrTerminal when the allocation does not live, ctx's, or what do returns.
func (r *Runner) carry(ctx context.Context, do func(context.Context) error) error {
	result := make(chan error, 1)
	r.running.mu.Lock()
	lives := r.running.liveLocked() && !r.running.left
	if lives {
		r.running.carried.Go(func() { result <- do(context.WithoutCancel(ctx)) })
	}
	r.running.mu.Unlock()
	if !lives {
		return interfaces.ErrTerminal
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// hold keeps every gate shut until unhold; it fails when the allocation does not live. What a gate that has just opened lets start
// comes before what the caller does next.
func (r *Runner) hold() bool {
	r.running.gates.Lock()
	defer r.running.gates.Unlock()
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

// open opens the gates of tasks, unless they are to be kept shut. They are, too, while what an earlier runner's restart of all tasks has
// told to end is still there.
func (r *Runner) open(tasks []string) {
	if len(tasks) == 0 {
		return
	}
	r.running.gates.Lock()
	defer r.running.gates.Unlock()
	if r.held() || slices.ContainsFunc(r.tasks, (*taskrunner.Runner).Resetting) {
		return
	}
	r.resources.beforeStart()
	for _, name := range tasks {
		r.task(name).Open()
	}
}

func (r *Runner) held() bool {
	r.running.mu.Lock()
	defer r.running.mu.Unlock()
	return r.running.held > 0
}

// beginEnding notes that the tasks are being killed, and reports whether that is new. It may not be, for now, while all tasks are
// being restarted and nobody has asked for the end: what has just ended begins anew with the others.
func (r *Runner) beginEnding(e lifecycle.Ending) (first, may bool) {
	if r.stopRequested() {
		r.running.last.Do(r.lastIntervals)
	}
	asked := e.Cause == lifecycle.Stopped || e.Cause == lifecycle.Aborted
	r.running.mu.Lock()
	defer r.running.mu.Unlock()
	if !r.running.ending && r.running.held > 0 && !asked {
		return false, false
	}
	first, r.running.ending = !r.running.ending, true
	return first, true
}

// lastIntervals has no poststop task wait for another interval of its restart policy, since a stop waits for it and does not kill it.
func (r *Runner) lastIntervals() {
	for _, t := range r.order() {
		if t.Hook == lifecycle.Poststop {
			r.task(t.Name).LastInterval()
		}
	}
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

func (r *Runner) setLeft() {
	r.running.mu.Lock()
	defer r.running.mu.Unlock()
	r.running.left = true
}
