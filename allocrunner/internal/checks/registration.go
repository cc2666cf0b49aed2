package checks

import (
	"cmp"
	"context"
	"reflect"
	"time"

	"github.com/hashicorp/nomad/api"
)

// registration is a check from the beginning of its task, or from New, until the task's end or a change of the check.
// Then another registration follows, and the result of a run that is still under way is dropped. The Runner's mutex
// guards all fields but check.
type registration struct {
	check   *check
	status  api.AllocCheckStatus // as shown
	state   state
	saved   bool      // status is an earlier process's
	wanted  bool      // its task has begun, so it must run
	updated time.Time // when an update made it; its grace does not begin before. Zero if no update did

	cancel context.CancelFunc // ends its runs; nil until Run has started them
	before <-chan struct{}    // closed when the runs of the previous registration have ended; nil if there were none
	done   chan struct{}      // closed when its own runs have ended
}

// waiting is the output of a check that has not run.
const waiting = "nomad: waiting to run"

// register makes a registration that shows the check as status.
func register(c *check, status string, wanted bool) *registration {
	now := time.Now()
	reg := &registration{check: c, status: c.about, wanted: wanted, done: make(chan struct{})}
	reg.status.Status, reg.status.Output, reg.status.Timestamp = status, waiting, now.Unix()
	reg.state.status = status
	return reg
}

// show adopts an earlier process's result, under the check's own names.
func (reg *registration) show(s api.AllocCheckStatus) {
	reg.saved = true
	reg.status.Status, reg.status.StatusCode = s.Status, s.StatusCode
	reg.status.Output, reg.status.Timestamp = s.Output, s.Timestamp
	reg.state.status = s.Status
}

// since returns when the check began to count failures of tasks that have been up since up; zero if they are not up.
func (reg *registration) since(up time.Time) time.Time {
	if !up.IsZero() && up.Before(reg.updated) {
		return reg.updated
	}
	return up
}

// Begin registers the checks of a task or, for the empty name, those of the group's services that name no task. They
// are shown as pending, or with their initial_status, their counters begin, and they run. Another call registers them
// again, as a restart of the task requires. A check of a group's service that names a task belongs to that task. A task
// may have no checks. Begin and End may be called before Run.
func (r *Runner) Begin(task string) { r.renew(task, true) }

// End ends the runs of a task's checks. It does not wait for a run that is under way, whose result is dropped. The
// checks are pending until the next Begin.
func (r *Runner) End(task string) { r.renew(task, false) }

func (r *Runner) renew(task string, wanted bool) {
	r.edit(func() bool {
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
	})
	r.wake.Send()
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

// end ends the runs, and cancels the one that is under way, whose result is dropped. The channel is closed when all
// have ended; it is nil if there were none.
func (old *registration) end() <-chan struct{} {
	if old.cancel == nil {
		return old.before
	}
	old.cancel()
	return old.done
}

// Update replaces the job by another version: it uses Alloc and Resolver of cfg. A check with the same definition,
// interpolated, continues. A check that differs is registered again, and runs if its task has begun. A removed check
// disappears at once. After an error nothing has changed. Errors: ErrInvalid.
func (r *Runner) Update(cfg Config) error {
	merged := r.cfg // never changes after New
	merged.Alloc, merged.Resolver = cfg.Alloc, cfg.Resolver
	list, err := prepare(merged)
	if err != nil {
		return err
	}
	r.edit(func() bool { return r.swapLocked(list) })
	r.wake.Send()
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
		if !known || !reflect.DeepEqual(reg.check.definition, c.definition) {
			reg, changed = cmp.Or(reg, new(registration)).renewed(c, r.begun[c.about.Task]), true
			reg.updated = time.Now()
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
