package checks

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Run runs the checks that have begun until ctx ends or Stop is called. When it returns, no check runs and the results
// are cleared. It is called once.
func (r *Runner) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !r.open(cancel) {
		return
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer r.Stop()
	for {
		for _, s := range r.startable(ctx) {
			running.Go(func() { r.repeat(s.ctx, s.reg) })
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
	}
}

// open makes the results visible. It reports whether Stop has not been called.
func (r *Runner) open(cancel context.CancelFunc) (opened bool) {
	r.edit(func() bool {
		if opened = !r.stopped; opened {
			r.cancel = cancel
		}
		return opened && len(r.list) > 0 && r.changedLocked()
	})
	return opened
}

// start is a registration whose runs are to begin, and the context that ends them.
type start struct {
	ctx context.Context
	reg *registration
}

// startable returns the registrations that must be started. Their runs end with ctx, or with the registration.
func (r *Runner) startable(ctx context.Context) []start {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped || r.suspended {
		return nil
	}
	var list []start
	for _, reg := range r.list {
		if reg.wanted && reg.cancel == nil {
			s := start{reg: reg}
			s.ctx, reg.cancel = context.WithCancel(ctx)
			list = append(list, s)
		}
	}
	return list
}

// noneInterval is the time between two reads of a result that does not exist yet.
const noneInterval = time.Second

// repeat runs one check: soon, then at whole intervals from the first run. Missed intervals are skipped. It first waits
// for the runs of the previous registration, which are being ended, so that a check never runs twice at a time.
func (r *Runner) repeat(ctx context.Context, reg *registration) {
	defer close(reg.done)
	if reg.before != nil {
		<-reg.before
	}
	c := reg.check
	first := time.Now().Add(c.spread())
	timer := time.NewTimer(time.Until(first))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		o := c.run(ctx)
		r.record(ctx, reg, began, o)
		interval := c.spec.Interval
		if o.none { // show the result soon after it is known
			interval = min(interval, noneInterval)
		}
		timer.Reset(interval - time.Since(first)%interval)
	}
}

// news is what a run has changed.
type news struct {
	was, now string // statuses
	restart  bool
}

// record publishes a result, logs a change of status, and requests a restart when one is due.
func (r *Runner) record(ctx context.Context, reg *registration, began time.Time, o outcome) {
	n, ok := r.evaluate(ctx, reg, began, o)
	if !ok {
		return
	}
	about := &reg.check.about
	if n.was != n.now {
		r.cfg.OnChange()
		r.cfg.Logger.Info("check changed", "service", about.Service, "check", about.Check, "from", n.was, "to", n.now)
	}
	if n.restart {
		r.cfg.Logger.Info("check requests a restart", "service", about.Service, "check", about.Check, "task",
			about.Task)
		r.cfg.Restart(about.Task, fmt.Sprintf("healthcheck: check %q unhealthy", about.Check))
	}
}

// evaluate applies the thresholds to a result and publishes it. It does nothing if ctx has ended, which happens under
// the same mutex when the registration or Run ends: a run that was cut off says nothing about the service, and neither
// does one without a result.
func (r *Runner) evaluate(ctx context.Context, reg *registration, began time.Time, o outcome) (n news, ok bool) {
	var up time.Time
	if reg.check.thresholds.limit > 0 {
		up = r.cfg.Up(reg.check.about.Task)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil || o.none {
		return n, false
	}
	n.was = reg.state.status
	reg.state, n.restart = reg.check.thresholds.next(reg.state, reg.since(up), began, o)
	n.now = reg.state.status
	s := &reg.status
	s.Status, s.StatusCode, s.Output, s.Timestamp = n.now, o.code, o.output, time.Now().Unix()
	if !n.restart {
		return n, r.changedLocked()
	}
	for _, other := range r.list {
		if other.check.about.Task == reg.check.about.Task { // one request is enough for all checks of the task
			other.state = other.state.seenUp(other.since(up))
			other.state.disarmed = true
		}
	}
	return n, r.changedLocked()
}
