package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/client"
)

// follower prints what happens to an allocation that another process runs, as that one would.
type follower struct {
	layout  layout
	id      string
	printer *printer // nil before the allocation has been seen
	make    func(*api.Allocation) *printer
	quiet   bool                       // what has happened before is not printed
	kills   bool                       // the stop that is followed kills every task immediately
	until   func(*api.Allocation) bool // what is waited for besides the end; nil for nothing

	output bool        // what tasks print is printed, too
	words  bool        // the last words of tasks that fail are
	tasks  *taskOutput // does that

	last  *api.Allocation           // as it was seen last
	shown map[string]*api.TaskEvent // the last event of each task
}

// follow prints events until the allocation has ended, or until is satisfied, and returns it as it is then. Errors: *abandonedError when its
// taskapi has exited before it ended; *unsavedError when it has ended and its state does not say so; ctx's.
func (f *follower) follow(ctx context.Context) (*api.Allocation, error) {
	c := f.layout.client(f.id)
	defer c.Close()
	for index := uint64(0); ; {
		listening := c.Listening()
		alloc, next, err := c.Changed(ctx, index)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			if alloc, err := f.unanswered(ctx, c); alloc != nil || err != nil {
				return alloc, err
			}
			index = 0 // another taskapi counts from its own beginning
			continue
		}
		f.show(alloc)
		index = next
		if f.until != nil && f.until(alloc) {
			return alloc, nil
		}
		if interfaces.Ended(alloc) {
			c.AwaitClosed(ctx, listening)
		}
	}
}

// unanswered finds out why there is no answer. It returns the allocation when that has ended, and nil when a taskapi answers again.
func (f *follower) unanswered(ctx context.Context, c *client.Client) (*api.Allocation, error) {
	found := c.Locate(ctx, client.Following)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case found.Holder == client.Serving:
		return nil, nil
	case found.Holder == client.Refusing, found.Holder == client.Hanging:
		return nil, f.layout.errHeld(f.id, found.Err)
	case found.Holder == client.Ended:
		f.show(found.Alloc)
		return found.Alloc, nil
	case f.last != nil && allDead(f.last):
		return f.last, &unsavedError{f.layout, f.id, found.Holder == client.Nobody}
	case found.Holder == client.Unreadable:
		return nil, f.layout.errUnreadable(f.id, found.Err)
	}
	return nil, &abandonedError{f.layout, f.id}
}

// abandonedError is an allocation whose taskapi has exited before it ended.
type abandonedError struct {
	layout layout
	id     string
}

func (e *abandonedError) Error() string {
	return fmt.Sprintf("allocation %s: its taskapi has exited and its tasks may run on: '%s' resumes it, '%s' stops it",
		e.id, e.layout.Command("takeover", e.id), e.layout.Command("stop", e.id))
}

// unsavedError is an allocation that has ended, as its file system could not record.
type unsavedError struct {
	layout layout
	id     string
	saved  bool // an earlier state was
}

func (e *unsavedError) Error() string {
	text := fmt.Sprintf("the tasks of allocation %s have ended, and that could not be written to %s", e.id, e.layout.State(e.id))
	if e.saved {
		return text + fmt.Sprintf("; run '%s' when it can", e.layout.Command("stop", e.id))
	}
	return text + fmt.Sprintf("; '%s' removes its directory", e.layout.Command("gc", e.id))
}

// allDead reports whether no task of the allocation runs or will.
func allDead(alloc *api.Allocation) bool {
	for _, s := range alloc.TaskStates {
		if s.State != "dead" {
			return false
		}
	}
	return len(alloc.TaskStates) > 0
}

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
	// What the tasks write from now on is theirs to be printed: from before an event is, on which somebody acts.
	var failures *failures // not of those that have been: the files may say no more of them
	if f.words && f.printer.failures == nil {
		failures = newFailures(f.layout, alloc)
		failures.begin(taskNames(alloc))
	}
	var tasks *taskOutput
	if f.output && f.tasks == nil && !interfaces.Ended(alloc) {
		tasks = newTaskOutput(f.printer, f.layout, alloc)
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
			if e.event.Type == api.TaskStarted {
				f.tasks.started(e.task)
			}
		}
	}
	if tasks != nil {
		f.tasks = tasks
		tasks.beginAll()
	}
	if failures != nil {
		f.printer.failures = failures
	}
	f.last, f.quiet = alloc, false
}

// compare prints what has changed of the allocation as a whole.
func (f *follower) compare(was, is *api.Allocation, at time.Time) {
	if jobNumber(was.Job) != jobNumber(is.Job) {
		f.printer.allocEventAt(at, "Updated", fmt.Sprintf("runs version %d of its job", jobNumber(is.Job)))
	}
	if was.DesiredStatus != is.DesiredStatus && is.DesiredStatus == api.AllocDesiredStatusStop {
		if f.kills {
			f.printer.allocEventAt(at, "Killing", "killing immediately")
		} else {
			f.printer.allocEventAt(at, "Stopping", "stopping gracefully")
		}
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

// news returns the events that have not been shown, in the order of their times. A task keeps its latest ones only: when the last that was
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

// after returns the events that follow the last one shown, all when that is not there. Clocks may be set back, so times can't decide.
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
