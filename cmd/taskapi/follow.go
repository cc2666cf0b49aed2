package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
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
	quiet   bool // what has happened before is not printed

	last  *api.Allocation           // as it was seen last
	shown map[string]*api.TaskEvent // the last event of each task
}

// follow prints events until the allocation is over, and gives it as it ended. Errors: errAbandoned when its sidecar is gone and it is
// not over; ctx's.
func (f *follower) follow(ctx context.Context) (*api.Allocation, error) {
	c := f.layout.client(f.id)
	defer c.close()
	var index uint64
	var silent time.Time // since when nobody answers
	for {
		alloc, next, err := c.changed(ctx, index)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err == nil {
			f.show(alloc)
			index, silent = next, time.Time{}
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

// errAbandoned: the allocation is not over, and its sidecar is gone.
var errAbandoned = errors.New("its taskapi is gone and its tasks may run on")

// left finds out why nobody answers: the allocation is over, or abandoned, or its sidecar begins or ends just now.
func (f *follower) left(why error, since time.Duration) (*api.Allocation, error) {
	saved, err := state.ReadAlloc(filepath.Join(f.layout.alloc(f.id), state.FileName), f.id)
	busy := errors.Is(err, state.ErrInUse) || errors.Is(err, state.ErrNotFound) // the latter for a moment, between two under one ID
	switch {
	case busy && since < busyTimeout:
		time.Sleep(startPause)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("allocation %s: %w: %w", f.id, err, why)
	case !saved.Over:
		return nil, fmt.Errorf("allocation %s: %w: '%s' with the job file takes it over, '%s' ends it", f.id, errAbandoned,
			f.layout.command("run", "--alloc-id", f.id), f.layout.command("stop", f.id))
	}
	f.show(saved.Alloc)
	return saved.Alloc, nil
}

// show prints what is new.
func (f *follower) show(alloc *api.Allocation) {
	switch {
	case f.printer == nil:
		f.printer = f.make(alloc)
		if !f.quiet {
			f.printer.announce("Attached", alloc, f.layout)
		}
	case alloc.CreateTime != f.last.CreateTime: // it was replaced
		f.printer.fit(alloc)
		f.printer.announce("Starting", alloc, f.layout)
		f.last, f.shown = nil, nil
	}
	if f.last != nil {
		f.compare(f.last, alloc)
	}
	for _, e := range f.news(alloc) {
		if !f.quiet {
			f.printer.taskEvent(e.task, e.event)
		}
	}
	f.last, f.quiet = alloc, false
}

// compare prints what has changed of the allocation as a whole.
func (f *follower) compare(was, is *api.Allocation) {
	if jobNumber(was.Job) != jobNumber(is.Job) {
		f.printer.allocEvent("Updated", fmt.Sprintf("goes on with version %d of its job", jobNumber(is.Job)))
	}
	if was.DesiredStatus != is.DesiredStatus && is.DesiredStatus == api.AllocDesiredStatusStop {
		f.printer.allocEvent("Stopping", "stopping in order")
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
