package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/state"
)

// follower prints what happens to an allocation that another process runs, as that one would.
type follower struct {
	layout  layout
	id      string
	printer *printer // nil before the allocation has been seen
	make    func(*api.Allocation) *printer
	quiet   bool                       // what has happened before is not printed
	until   func(*api.Allocation) bool // what is waited for besides the end; nil for nothing

	last  *api.Allocation           // as it was seen last
	shown map[string]*api.TaskEvent // the last event of each task
}

// follow prints events until the allocation is over, or as it is waited for, and gives it as it is then. Errors: errAbandoned when its sidecar is gone and it is
// not over; ctx's.
func (f *follower) follow(ctx context.Context) (*api.Allocation, error) {
	c := f.layout.client(f.id)
	defer c.close()
	var index uint64
	var silent time.Time // since when nobody answers
	for {
		asked, _ := os.Stat(f.layout.OperatorSocket(f.id)) // nil when it is not there, and then nobody answers
		alloc, next, err := c.changed(ctx, index)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err == nil {
			f.show(alloc)
			index, silent = next, time.Time{}
			if f.until != nil && f.until(alloc) {
				return alloc, nil
			}
			if ended(alloc) {
				c.awaitClosed(ctx, asked)
			}
			continue
		}
		index = 0 // who answers next may count anew
		if silent.IsZero() {
			silent = time.Now()
		}
		if over, err := f.left(err, time.Since(silent)); over != nil || err != nil {
			return over, err
		}
	}
}

// leftTimeout is how long an allocation whose taskapi has gone is waited for: one that takes it over is there within a fraction of that.
const leftTimeout = time.Second

// errAbandoned: the allocation is not over, and its sidecar is gone.
var errAbandoned = errors.New("its taskapi is gone and its tasks may run on")

// left finds out why nobody answers: the allocation is over, or abandoned, or its sidecar begins or ends just now.
func (f *follower) left(why error, since time.Duration) (*api.Allocation, error) {
	saved, err := f.layout.saved(f.id)
	busy := errors.Is(err, state.ErrInUse) || errors.Is(err, state.ErrNotFound) // the latter for a moment, between two under one ID
	switch {
	case errors.Is(err, state.ErrInUse) && refused(why) && since > refusedTimeout:
		return nil, f.layout.errMute(f.id, why)
	case busy && since < busyTimeout:
		time.Sleep(startPause)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("allocation %s: %w: %w", f.id, err, why)
	case !saved.Over && since < leftTimeout: // another taskapi may be about to take it over
		time.Sleep(startPause)
		return nil, nil
	case !saved.Over && f.last != nil && allDead(f.last):
		return nil, fmt.Errorf("the tasks of allocation %s have ended, and that could not be written to %s: when it can be, '%s' does", f.id,
			f.layout.State(f.id), f.layout.Command("stop", f.id))
	case !saved.Over:
		return nil, fmt.Errorf("allocation %s: %w: '%s' %s takes it over, '%s' ends it", f.id, errAbandoned,
			f.layout.Command("run", "--alloc-id", f.id), withJobFile, f.layout.Command("stop", f.id))
	}
	f.show(saved.Alloc)
	return saved.Alloc, nil
}

// allDead reports that no task of the allocation runs or will.
func allDead(alloc *api.Allocation) bool {
	for _, s := range alloc.TaskStates {
		if s.State != "dead" {
			return false
		}
	}
	return len(alloc.TaskStates) > 0
}

// ended reports that the allocation is over, though its sidecar may have to say so yet.
func ended(alloc *api.Allocation) bool { return alloc.ClientTerminalStatus() && allDead(alloc) }

// show prints what is new.
func (f *follower) show(alloc *api.Allocation) {
	switch {
	case f.printer == nil:
		f.printer = f.make(alloc)
		if !f.quiet {
			f.printer.announce(time.Now(), "Attached", alloc, f.layout)
		}
	case alloc.CreateTime != f.last.CreateTime: // it was replaced
		f.printer.fit(alloc)
		f.printer.announce(time.Unix(0, alloc.CreateTime), "Starting", alloc, f.layout)
		f.last, f.shown = nil, nil
	}
	news := f.news(alloc)
	if f.last != nil {
		at := time.Unix(0, alloc.ModifyTime)
		if len(news) > 0 && news[0].event.Time < alloc.ModifyTime { // of several changes it is the last one's
			at = time.Unix(0, news[0].event.Time)
		}
		f.compare(f.last, alloc, at)
	}
	for _, e := range news {
		if !f.quiet {
			f.printer.taskEvent(e.task, e.event)
		}
	}
	f.last, f.quiet = alloc, false
}

// compare prints what has changed of the allocation as a whole.
func (f *follower) compare(was, is *api.Allocation, at time.Time) {
	if jobNumber(was.Job) != jobNumber(is.Job) {
		f.printer.allocEventAt(at, "Updated", fmt.Sprintf("goes on with version %d of its job", jobNumber(is.Job)))
	}
	if was.DesiredStatus != is.DesiredStatus && is.DesiredStatus == api.AllocDesiredStatusStop {
		f.printer.allocEventAt(at, "Stopping", "stopping in order")
	}
}

func jobNumber(job *api.Job) uint64 {
	if job == nil || job.Version == nil {
		return 0
	}
	return *job.Version
}

// taskEvent is an event with its task.
type taskEvent struct {
	task  string
	event *api.TaskEvent
}

// news are the events that have not been shown, in the order of their times. A task keeps its latest ones only: when the last that was
// shown is not among them, some are lost.
func (f *follower) news(alloc *api.Allocation) []taskEvent {
	var news []taskEvent
	for task, s := range alloc.TaskStates {
		for _, e := range after(f.shown[task], s.Events) {
			news = append(news, taskEvent{task, e})
		}
		if n := len(s.Events); n > 0 {
			if f.shown == nil {
				f.shown = map[string]*api.TaskEvent{}
			}
			f.shown[task] = s.Events[n-1]
		}
	}
	slices.SortStableFunc(news, func(a, b taskEvent) int {
		return cmp.Or(cmp.Compare(a.event.Time, b.event.Time), cmp.Compare(a.task, b.task))
	})
	return news
}

// after are the events that follow the last one shown, all when that is not there. Clocks may be set back, so times don't tell.
func after(last *api.TaskEvent, events []*api.TaskEvent) []*api.TaskEvent {
	if last == nil {
		return events
	}
	for i := len(events) - 1; i >= 0; i-- {
		if e := events[i]; e.Time == last.Time && e.Type == last.Type {
			return events[i+1:]
		}
	}
	return events
}
