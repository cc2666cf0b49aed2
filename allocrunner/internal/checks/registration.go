package checks

import (
	"cmp"
	"context"
	"time"

	"github.com/hashicorp/nomad/api"
)

// registration is a check from the beginning of its task, or from being known at all, to its task's end or a change of the check.
// A later one is another registration, so the result of a run that is still under way is dropped. The Runner's mutex guards all
// fields but check.
type registration struct {
	check    *check
	status   api.AllocCheckStatus // as shown
	standing standing
	saved    bool      // status is an earlier process's
	wanted   bool      // its task has begun: it is to run
	updated  time.Time // when an update made it: its grace does not begin before that; zero when none did

	cancel context.CancelFunc // ends its runs; nil until Run has started them
	before <-chan struct{}    // closed when runs of the registration before have ended; nil when there were none
	done   chan struct{}      // closed when its own have ended
}

// waiting is what a check shows that has not run.
const waiting = "nomad: waiting to run"

// register makes a registration that shows the check as status.
func register(c *check, status string, wanted bool) *registration {
	now := time.Now()
	reg := &registration{check: c, status: c.about, wanted: wanted, done: make(chan struct{})}
	reg.status.Status, reg.status.Output, reg.status.Timestamp = status, waiting, now.Unix()
	reg.standing.status = status
	return reg
}

// restored returns the first registration of a check, whose task has not begun.
func restored(c *check, saved api.AllocCheckStatuses) *registration {
	reg := register(c, pending, false)
	if s, ok := saved[c.about.ID]; ok {
		reg.show(s)
	}
	return reg
}

// show adopts an earlier process's result, under the check's own names.
func (reg *registration) show(s api.AllocCheckStatus) {
	reg.saved = true
	reg.status.Status, reg.status.StatusCode, reg.status.Output, reg.status.Timestamp = s.Status, s.StatusCode, s.Output, s.Timestamp
	reg.standing.status = s.Status
}

// since returns when the check began to count failures of what has been up since up; zero when that isn't up.
func (reg *registration) since(up time.Time) time.Time {
	if !up.IsZero() && up.Before(reg.updated) {
		return reg.updated
	}
	return up
}

// Begin registers the checks of a task, or those of the group's services that name no task for the empty name: they are shown as
// pending, or as their initial_status says, their counters start, and they run. Another call registers them again, as a restart of
// the task requires. Checks of a group's service that name a task are that task's. A task without checks is fine. Begin and End may
// come before Run.
func (r *Runner) Begin(task string) { r.renew(task, true) }

// End ends the runs of a task's checks, without waiting for one that is under way, whose result is dropped. They are shown as
// pending until the next Begin.
func (r *Runner) End(task string) { r.renew(task, false) }

func (r *Runner) renew(task string, wanted bool) {
	r.edit(func() bool { return r.renewLocked(task, wanted) })
	r.poke()
}

// renewLocked reports whether a visible result has changed.
func (r *Runner) renewLocked(task string, wanted bool) bool {
	if r.stopped {
		return false
	}
	r.begun[task] = wanted
	if task == "" && wanted {
		r.suspended = false
	}
	found := false
	for i, old := range r.list {
		if old.check.about.Task == task {
			r.list[i] = old.renewed(old.check, wanted)
			found = true
		}
	}
	return found && r.changedLocked()
}

// Suspend deregisters the group's checks and clears all results until the group's next Begin. No check runs meanwhile.
func (r *Runner) Suspend() {
	r.edit(func() bool {
		changed := len(r.list) > 0 && r.changedLocked()
		r.suspended = true
		for i, old := range r.list {
			r.list[i] = old.renewed(old.check, old.wanted && old.check.about.Task != "")
		}
		r.begun[""] = false
		return changed
	})
}

// renewed ends a registration and makes the next one, of the same check or its new definition.
func (old *registration) renewed(c *check, wanted bool) *registration {
	status := pending
	if wanted {
		status = initially(&c.spec)
	}
	reg := register(c, status, wanted)
	if old.saved && wanted {
		reg.show(old.status)
		reg.saved = false
	}
	reg.before = old.end()
	return reg
}

// end ends the runs; one that is under way finds its context over, and its result is dropped. What it returns is closed when they
// have ended, and nil when there were none.
func (old *registration) end() <-chan struct{} {
	if old.cancel == nil {
		return old.before
	}
	old.cancel()
	return old.done
}

// poke wakes Run to start registrations.
func (r *Runner) poke() {
	select {
	case r.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// Update goes on with another version of the job: Alloc and Resolver of cfg replace those of before, the rest stays. A
// check with the same definition, interpolated, goes on untouched; one that differs is registered again, when its task has begun; one
// that was removed disappears at once. After an error everything is as before. Errors: ErrInvalid.
func (r *Runner) Update(cfg Config) error {
	merged := r.cfg // never changes after New
	merged.Alloc, merged.Resolver = cfg.Alloc, cfg.Resolver
	list, err := prepare(merged)
	if err != nil {
		return err
	}
	r.edit(func() bool { return r.swapLocked(list) })
	r.poke()
	return nil
}

// swapLocked replaces the list. It reports whether a visible result has changed.
func (r *Runner) swapLocked(list []*check) bool {
	if r.stopped {
		return false
	}
	old := make(map[string]*registration, len(r.list))
	for _, reg := range r.list {
		old[reg.status.ID] = reg
	}
	next := make([]*registration, 0, len(list))
	changed := false
	for _, c := range list {
		reg, known := old[c.about.ID]
		delete(old, c.about.ID)
		if !known || !reg.check.same(c) {
			reg, changed = r.replacedLocked(reg, c), true
		}
		next = append(next, reg)
	}
	for _, reg := range old {
		reg.end()
	}
	changed = changed || len(old) > 0
	r.list = next
	return changed && r.changedLocked()
}

// replacedLocked returns the registration of a new or changed check; old is nil for a new one.
func (r *Runner) replacedLocked(old *registration, c *check) *registration {
	reg := cmp.Or(old, new(registration)).renewed(c, r.begun[c.about.Task])
	reg.updated = time.Now()
	return reg
}
