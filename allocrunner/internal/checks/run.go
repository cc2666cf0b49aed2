package checks

import (
	"context"
	"fmt"
	"sync"
	"time"

	"taskapi/allocrunner/interfaces"
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
		for _, run := range r.startable(ctx) {
			running.Go(run)
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

// startable returns the runs of the registrations that must be started. They end with ctx, or with the registration.
func (r *Runner) startable(ctx context.Context) (list []func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped || r.suspended {
		return nil
	}
	for _, reg := range r.list {
		if reg.wanted && reg.cancel == nil {
			var regCtx context.Context
			regCtx, reg.cancel = context.WithCancel(ctx)
			list = append(list, func() { r.repeat(regCtx, reg) })
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

// record publishes a result, logs a change of status, and requests a restart when one is due.
func (r *Runner) record(ctx context.Context, reg *registration, began time.Time, o outcome) {
	was, is, restart := r.evaluate(ctx, reg, began, o)
	about := &reg.check.about
	if was != is {
		r.cfg.OnChange()
		r.cfg.Logger.Info("check changed", "service", about.Service, "check", about.Check, "from", was, "to", is)
	}
	if restart {
		r.cfg.Logger.Info("check requests a restart", "service", about.Service, "check", about.Check, "task",
			about.Task)
		r.cfg.Restart(about.Task, fmt.Sprintf("healthcheck: check %s unhealthy", interfaces.Quote(about.Check)))
	}
}

// evaluate applies the thresholds to a result and publishes it. It does nothing if ctx has ended, which happens under
// the same mutex when the registration or Run ends: a run that was cut off says nothing about the service, and neither
// does one without a result. It returns the statuses before and after a result that is visible.
func (r *Runner) evaluate(
	ctx context.Context, reg *registration, began time.Time, o outcome,
) (was, is string, restart bool) {
	var up time.Time
	if reg.check.thresholds.limit > 0 {
		up = r.cfg.Up(reg.check.about.Task)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil || o.none {
		return "", "", false
	}
	was = reg.state.status
	reg.state, restart = reg.check.thresholds.next(reg.state, reg.since(up), began, o)
	is = reg.state.status
	s := &reg.status
	s.Status, s.StatusCode, s.Output, s.Timestamp = is, o.code, o.output, time.Now().Unix()
	for _, other := range r.list {
		if restart && other.check.about.Task == reg.check.about.Task { // one request is enough for all of the task
			other.state = other.state.seenUp(other.since(up))
			other.state.disarmed = true
		}
	}
	if !r.changedLocked() {
		return "", "", false
	}
	return was, is, restart
}
