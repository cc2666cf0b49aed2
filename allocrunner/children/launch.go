package children

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/dispatch"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/ptr"
)

// startTimeout is how long a child may take to begin.
const startTimeout = time.Minute

// longestWait is how long the schedule waits without a look at the clock, which may have been set.
const longestWait = time.Minute

// mostBack is how far the clock may be set back without launching a second child for the times that come again, as in
// cron(8). After a greater step, the schedule counts from the new time on.
const mostBack = 3 * time.Hour

// openRecord reads the record, or begins one.
func (r *runner) openRecord() (err error) {
	r.starting.Lock()
	defer r.starting.Unlock()
	if r.cfg.Saved != nil {
		if r.record, err = readRecord(r.cfg.Dir); err != nil {
			return err
		}
	}
	if r.record.Starting == nil {
		r.record.Starting = map[string]json.RawMessage{}
	}
	if r.record.Since.IsZero() {
		r.record.Since = time.Now()
		return r.record.save(r.cfg.Dir)
	}
	return nil
}

// serve starts the children whose start was cut short, and then the children of the schedule, until the runner ends.
func (r *runner) serve(ctx context.Context) {
	if r.host == nil {
		<-r.ending.Done()
		return
	}
	r.goOn(ctx)
	for first := true; ; first = false {
		next := r.launchDue(ctx)
		r.show(api.AllocClientStatusRunning, r.describe(next))
		if first { // a terminal would show nothing until the first child
			r.host.Say("Waiting", r.describe(next))
		}
		var timer <-chan time.Time
		if !next.IsZero() {
			timer = time.After(min(longestWait, max(0, time.Until(next))))
		}
		select {
		case <-ctx.Done():
			return
		case <-r.ending.Done():
			return
		case <-r.changed:
		case <-timer:
		}
	}
}

// sayChildren names the children that run on without the parent.
func (r *runner) sayChildren(ctx context.Context) {
	if r.host == nil {
		return
	}
	running, err := r.host.Children(ctx, r.Alloc(), false)
	if err != nil || len(running) == 0 {
		return
	}
	names := make([]string, len(running))
	for i, child := range running {
		names[i] = child.JobID
	}
	r.host.Say("Children", fmt.Sprintf("%d run on: %s", len(names), strings.Join(names, ", ")))
}

// describe says what the allocation waits for.
func (r *runner) describe(next time.Time) string {
	switch job := r.Alloc().Job; {
	case job.IsParameterized():
		return "Waits for dispatches"
	case next.IsZero():
		return "Launches nothing: its schedule is off or over"
	default:
		return "Next launch at " + next.Format("2006-01-02 15:04:05 MST")
	}
}

// goOn starts the children that an earlier process has accepted, and lets requests in. Requests wait until goOn has
// ended, since a repeated dispatch must find the child that an earlier process has accepted.
func (r *runner) goOn(ctx context.Context) {
	r.starting.Lock()
	defer r.starting.Unlock()
	close(r.begun)
	for _, id := range slices.Sorted(maps.Keys(r.record.Starting)) {
		var job struct{ ID string }
		_ = json.Unmarshal(r.record.Starting[id], &job) // or its ID is not said
		_ = r.run(ctx, id, job.ID)                      // it is said
	}
	r.host.Resume(ctx, r.Alloc())
}

// launchDue starts a child if a time of the schedule has come or was missed: one child for all missed times. It returns
// the next time, zero for none.
func (r *runner) launchDue(ctx context.Context) (next time.Time) {
	r.starting.Lock()
	defer r.starting.Unlock()
	now, alloc := time.Now(), r.Alloc()
	s, _ := scheduleOf(alloc.Job) // it was tried before
	if r.record.Since.After(now.Add(mostBack)) {
		r.record.Since = now
	}
	due, next := s.due(r.record.Since, now)
	if due.IsZero() {
		return next
	}
	r.record.Since = due
	child := dispatch.Launched(alloc.Job, due)
	if ptr.Deref(alloc.Job.Periodic.ProhibitOverlap) {
		r.host.Resume(ctx, alloc)
		running, err := r.host.Children(ctx, alloc, false)
		if err != nil || len(running) > 0 {
			if err != nil {
				r.cfg.Logger.Warn("an error beside a launch that was left out", "error", err)
			}
			if len(running) == 0 {
				r.saveRecord()
			} else {
				r.say("Skipped", fmt.Sprintf("%s: %s runs still, and the job prohibits overlap", *child.ID,
					running[0].JobID), "job", *child.ID, "running", running[0].JobID)
			}
			return next
		}
	}
	_, _ = r.start(ctx, child) // it is said
	return next
}

// Dispatch starts a child of a parameterized job.
func (r *runner) Dispatch(ctx context.Context, d interfaces.Dispatch) (interfaces.Child, error) {
	alloc, err := r.startable(ctx)
	switch {
	case err != nil:
		return interfaces.Child{}, err
	case !alloc.Job.IsParameterized():
		return interfaces.Child{}, interfaces.ErrNotParameterized
	}
	if err := dispatch.Check(alloc.Job, d); err != nil {
		return interfaces.Child{}, &interfaces.ChildError{Err: err}
	}
	r.starting.Lock()
	defer r.starting.Unlock()
	if d.Token != "" {
		known, err := r.host.Children(ctx, alloc, true)
		if err != nil {
			return interfaces.Child{}, err
		}
		for _, child := range known {
			if ptr.Deref(child.Job.DispatchIdempotencyToken) == d.Token {
				return interfaces.Child{JobID: child.JobID, AllocID: child.ID, Known: true}, nil
			}
		}
	}
	return r.start(ctx, dispatch.Dispatched(alloc.Job, d, time.Now()))
}

// Force starts a child of a periodic job.
func (r *runner) Force(ctx context.Context) (interfaces.Child, error) {
	alloc, err := r.startable(ctx)
	switch {
	case err != nil:
		return interfaces.Child{}, err
	case !hasSchedule(alloc.Job):
		return interfaces.Child{}, interfaces.ErrNotPeriodic
	}
	r.starting.Lock()
	defer r.starting.Unlock()
	return r.start(ctx, dispatch.Launched(alloc.Job, time.Now()))
}

// setUpWait is how long a request waits for the set-up.
const setUpWait = 10 * time.Second

// startable returns the allocation once it starts children. Errors: ErrTerminal, ErrStarting, ctx's.
func (r *runner) startable(ctx context.Context) (*api.Allocation, error) {
	select {
	case <-r.begun:
	case <-r.ending.Done():
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(setUpWait):
		return nil, interfaces.ErrStarting
	}
	if r.ending.Err() != nil || r.Terminal() {
		return nil, interfaces.ErrTerminal
	}
	return r.Alloc(), nil
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// start starts a child. The caller holds starting. The ID of the child's allocation follows from the child's, so
// nothing starts the child a second time.
func (r *runner) start(ctx context.Context, child *api.Job) (interfaces.Child, error) {
	id := uuid.NewSHA1(uuid.MustParse(r.cfg.Alloc.ID), []byte(*child.ID)).String()
	encoded, err := json.Marshal(child)
	if err == nil {
		r.record.Starting[id] = encoded
		if err = r.record.save(r.cfg.Dir); err != nil {
			delete(r.record.Starting, id)
		}
	}
	if err != nil { // the disk is full, say
		err = fmt.Errorf("%s was not started: %w: %w", *child.ID, interfaces.ErrStateFile, err)
		r.say("Launch Failed", oneLine(err), "job", *child.ID)
		return interfaces.Child{}, err
	}
	if err := r.run(ctx, id, *child.ID); err != nil {
		return interfaces.Child{}, err
	}
	return interfaces.Child{JobID: *child.ID, AllocID: id}, nil
}

// run starts a child that the record has, and says so. The caller holds starting.
func (r *runner) run(ctx context.Context, id, job string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout) // the client may have gone
	defer cancel()
	err := r.host.Start(ctx, id, r.cfg.Alloc.TaskGroup, r.record.Starting[id])
	delete(r.record.Starting, id) // if that is not saved, a second start finds the child
	if err != nil {
		_, wrong := errors.AsType[*interfaces.ChildError](err)
		err = fmt.Errorf("%s can't run: %w", job, err)
		r.say("Launch Failed", oneLine(err), "job", job)
		return &interfaces.ChildError{Err: err, Later: !wrong}
	}
	r.say("Launched", fmt.Sprintf("%s, allocation %s", job, id), "job", job, "allocation", id)
	return nil
}

// say prints an event, and keeps it. The caller holds starting.
func (r *runner) say(kind, message string, pairs ...string) {
	r.record.add(kind, message, pairs...)
	r.saveRecord()
	r.host.Say(kind, message, pairs...)
	r.Change(func(*api.Allocation) {}) // for those who follow the events
	r.updated()
}

// saveRecord saves the record as well as it can.
func (r *runner) saveRecord() {
	if err := r.record.save(r.cfg.Dir); err != nil {
		r.cfg.Logger.Warn("a launch could not be noted", "error", err)
	}
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
