// Package follow prints an allocation's events and its tasks' output as they come: events as lines or as JSON, and the
// output from the tasks' log files.
package follow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/children"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/readiness"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/internal/ptr"
)

// Follower prints what happens to an allocation that another process runs, in the format of that process.
type Follower struct {
	base.Target
	Printer *Printer         // nil before the allocation has been seen
	W       base.Environment // not used: nothing is printed without standard output
	JSON    bool
	Quiet   bool                       // earlier events are not printed
	Kills   bool                       // the stop that is followed kills every task immediately
	Until   func(*api.Allocation) bool // another condition to wait for besides the end; nil for none

	Labels *Labels // names the allocation among others; nil for one alone

	Output bool // the tasks' output is printed, too
	Whole  bool // events, and this output, begin with the start of the allocation
	Words  bool // the last lines of failing tasks are printed
	Denied bool // what the tasks are refused is printed, too, within a second

	Last  *api.Allocation           // as it was seen last
	shown map[string]*api.TaskEvent // the last event of each task
	said  uint64                    // the last event of a job that starts children

	refused, saidRefused map[string][]*api.TaskEvent // by task: all, and those that were printed
}

// Follow prints events until the allocation has ended, or Until is satisfied, and returns the allocation as it is then.
// Errors: *base.AbandonedError when its taskapi has exited before the allocation ended; *UnsavedError when it has ended
// and its state does not say so; ctx's.
func (f *Follower) Follow(ctx context.Context) (*api.Allocation, error) {
	c := f.Client()
	defer c.Close()
	if f.Denied {
		c.ChangeWait = time.Second // no refusal changes the allocation
	}
	defer func() {
		if f.Printer != nil {
			f.Printer.Output.Finish()
		}
	}()
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
		if f.Denied {
			if refused, err := c.Refusals(ctx); err == nil {
				f.refused = refused
			}
		}
		f.Show(alloc)
		index = next
		if f.Until != nil && f.Until(alloc) {
			return alloc, nil
		}
		if interfaces.Ended(alloc) {
			c.AwaitClosed(ctx, listening)
		}
	}
}

// unanswered finds out why there is no answer. It returns the allocation if it has ended, and nil if a taskapi answers
// again.
func (f *Follower) unanswered(ctx context.Context, c *client.Client) (*api.Allocation, error) {
	found := c.Locate(ctx, client.Following)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case found.Holder == client.Serving:
		return nil, nil
	case found.Holder == client.Refusing, found.Holder == client.Hanging:
		return nil, f.ErrUnserved(found)
	case found.Holder == client.Ended:
		f.Show(found.Alloc)
		return found.Alloc, nil
	case f.Last != nil && allDead(f.Last):
		return f.Last, &UnsavedError{f.Target, found.Holder == client.Nobody}
	case found.Holder == client.Unreadable:
		return nil, f.ErrUnserved(found)
	}
	return nil, &base.AbandonedError{Target: f.Target}
}

// UnsavedError says that an allocation has ended, but its file system could not record that.
type UnsavedError struct {
	base.Target
	Saved bool // an earlier state was
}

func (e *UnsavedError) Error() string {
	text := fmt.Sprintf("the tasks of allocation %s have ended, and that could not be written to %s", e.ID,
		e.Layout.State(e.ID))
	if e.Saved {
		return text + fmt.Sprintf("; run '%s' when it can", e.Layout.Command("stop", e.ID))
	}
	return text + fmt.Sprintf("; '%s' removes its directory", e.Layout.Command("gc", e.ID))
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

// Show prints what is new.
func (f *Follower) Show(alloc *api.Allocation) {
	switch {
	case f.Printer == nil:
		f.Printer = NewPrinter(cmp.Or(f.W.Stdout, io.Discard), alloc, f.JSON)
		f.Printer.Colors, f.Printer.Layout = f.W.Colors(), f.Layout
		f.Labels.Apply(f.Printer, alloc)
		if !f.Quiet {
			if f.Whole {
				f.Printer.announceAt(time.Unix(0, alloc.CreateTime), "Starting", alloc)
			} else {
				f.Printer.Announce("Attached", alloc)
			}
		}
	case alloc.CreateTime != f.Last.CreateTime: // it was replaced
		f.Printer.Fit(alloc)
		f.Printer.announceAt(time.Unix(0, alloc.CreateTime), "Starting", alloc)
		f.Last, f.shown = nil, nil
	}
	// The tasks' output from now on is printed. This comes before the event is printed, since somebody may act on the
	// event.
	var failures *failures // not of those that have been: the files may say no more of them
	if f.Words && f.Printer.Failures == nil {
		failures = NewFailures(f.Layout, alloc)
		for _, task := range base.TaskNames(alloc) {
			failures.words.Of(task)
		}
	}
	var tasks *TaskOutput
	if f.Output && f.Printer.Output == nil && !interfaces.Ended(alloc) {
		tasks = NewTaskOutput(f.Printer, f.Layout, alloc)
		if f.Whole {
			for s := range tasks.begins {
				tasks.begins[s] = position{}
			}
		}
	}
	news := f.news(alloc)
	if f.Last != nil {
		at := time.Unix(0, alloc.ModifyTime)
		if len(news) > 0 && news[0].event.Time < alloc.ModifyTime { // of several changes it is the last one's
			at = time.Unix(0, news[0].event.Time)
		}
		f.compare(f.Last, alloc, at)
	}
	for _, e := range f.withRefusals(news) {
		if !f.Quiet {
			f.Printer.TaskEvent(e.task, e.event)
		}
	}
	f.launches(alloc)
	if tasks != nil {
		f.Printer.Output = tasks
		tasks.BeginAll()
	}
	if failures != nil {
		f.Printer.Failures = failures
	}
	f.Last, f.Quiet = alloc, false
}

// launches prints the new events of a job that starts children. They are in the allocation's directory.
func (f *Follower) launches(alloc *api.Allocation) {
	if alloc.Job == nil || !interfaces.IsParent(alloc.Job) {
		return
	}
	events, _ := children.Events(f.Layout.Alloc(alloc.ID)) // none, when the directory has gone
	for _, e := range events {
		if e.Number > f.said && !f.Quiet {
			f.Printer.print(line{e.Time, alloc.ID, "", e.Type, e.Message, e.Details})
		}
		f.said = max(f.said, e.Number)
	}
}

// compare prints the changes of the allocation as a whole.
func (f *Follower) compare(was, is *api.Allocation, at time.Time) {
	if jobNumber(was.Job) != jobNumber(is.Job) {
		f.Printer.allocEventAt(at, "Updated", fmt.Sprintf("runs version %d of its job", jobNumber(is.Job)))
	}
	if was.DesiredStatus != is.DesiredStatus && is.DesiredStatus == api.AllocDesiredStatusStop {
		if f.Kills {
			f.Printer.allocEventAt(at, "Killing", "killing immediately")
		} else {
			f.Printer.allocEventAt(at, "Stopping", "stopping gracefully")
		}
	}
}

func jobNumber(job *api.Job) uint64 { return ptr.Deref(cmp.Or(job, &api.Job{}).Version) }

type taskEvent struct {
	task  string
	event *api.TaskEvent
}

// news returns the events that have not been shown, in the order of their times. A task keeps only its latest events:
// if the last shown event is not among them, some are lost.
func (f *Follower) news(alloc *api.Allocation) []taskEvent {
	var news []taskEvent
	for task, s := range alloc.TaskStates {
		for _, e := range eventsAfter(f.shown[task], s.Events) {
			news = append(news, taskEvent{task, e})
		}
		if n := len(s.Events); n > 0 {
			if f.shown == nil {
				f.shown = map[string]*api.TaskEvent{}
			}
			f.shown[task] = s.Events[n-1]
		}
	}
	return sorted(news)
}

// withRefusals adds the refusals that have not been shown, or have come again since.
func (f *Follower) withRefusals(news []taskEvent) []taskEvent {
	for task, all := range f.refused {
		for _, e := range all {
			same := func(said *api.TaskEvent) bool {
				return said.Time == e.Time && said.DisplayMessage == e.DisplayMessage
			}
			if !slices.ContainsFunc(f.saidRefused[task], same) {
				news = append(news, taskEvent{task, e})
			}
		}
	}
	f.saidRefused = f.refused
	return sorted(news)
}

func sorted(events []taskEvent) []taskEvent {
	slices.SortStableFunc(events, func(a, b taskEvent) int {
		return cmp.Or(cmp.Compare(a.event.Time, b.event.Time), cmp.Compare(a.task, b.task))
	})
	return events
}

// eventsAfter returns the events after the last shown one, or all events if that one is missing. Clocks may be set
// back, so times can't decide.
func eventsAfter(last *api.TaskEvent, events []*api.TaskEvent) []*api.TaskEvent {
	if last == nil {
		return events
	}
	for i, e := range slices.Backward(events) {
		if e.Time == last.Time && e.Type == last.Type {
			return events[i+1:]
		}
	}
	return events
}

// AwaitStarted prints events until each of the tasks has started since before, is ready and has run for settleTime, or
// has ended for good, or until the allocation has ended. Errors: a task has failed to start, or has ended, and is
// to be started again; a task or the allocation has failed; a task is stopped, or paused by its schedule.
func (f *Follower) AwaitStarted(ctx context.Context, before *api.Allocation, tasks []string) error {
	f.Until = func(now *api.Allocation) bool { return which(tasks, starting, before, now) == "" }
	started, err := f.Follow(ctx)
	alloc := started
	if err == nil {
		f.Until = func(now *api.Allocation) bool {
			return which(tasks, endedSince, started, now) != "" || which(tasks, running, started, now) == ""
		}
		settling, end := context.WithTimeoutCause(ctx, settleTime, errSettled)
		defer end()
		if alloc, err = f.Follow(settling); errors.Is(err, errSettled) {
			alloc, err = f.Last, nil
		}
	}
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s is still being restarted; this command waits no longer", f.Target)
	} else if err != nil {
		return err
	}
	if task := which(tasks, failed, started, alloc); task != "" {
		return fmt.Errorf("task %q of allocation %s has failed", task, f.ID)
	}
	stopped := f.Target
	if stopped.Task = which(tasks, paused, started, alloc); stopped.Task != "" {
		return fmt.Errorf("%s does not run: %s", stopped, stopped.WhyPaused(alloc))
	}
	if alloc.ClientStatus == api.AllocClientStatusFailed {
		return fmt.Errorf("allocation %s has failed", f.ID)
	}
	if task := which(tasks, failedToStart, before, alloc); task != "" {
		return fmt.Errorf("task %q of allocation %s has failed to start: %s", task, f.ID,
			linewriter.OneLine(startFailure(before.TaskStates[task], alloc.TaskStates[task]).DisplayMessage))
	}
	if task := which(tasks, endedSince, started, alloc); task != "" {
		end := base.LastEvent(alloc.TaskStates[task], api.TaskTerminated)
		return fmt.Errorf("task %q of allocation %s has started and ended at once (%s)", task, f.ID,
			cmp.Or(end, &api.TaskEvent{}).DisplayMessage)
	}
	return nil
}

// settleTime is how long a task that has just started must run: a program that can't do its work usually ends sooner.
const settleTime = time.Second

var errSettled = errors.New("the tasks have run for long enough")

// which returns the first of the tasks of which is reports true, empty for none.
func which(tasks []string, is func(was, now *api.TaskState) bool, before, now *api.Allocation) string {
	for _, task := range tasks {
		a, b := before.TaskStates[task], now.TaskStates[task]
		if a != nil && b != nil && is(a, b) {
			return task
		}
	}
	return ""
}

// starting reports whether a task is to start and has not done so since was, or is not ready yet.
func starting(was, now *api.TaskState) bool {
	ready, _ := readiness.Shown(now)
	return !now.Failed && !paused(was, now) && !failedToStart(was, now) &&
		(now.StartedAt.Equal(was.StartedAt) || now.State == "running" && !ready)
}

// failedToStart reports whether the latest attempt to start a task since was has failed.
func failedToStart(was, now *api.TaskState) bool { return startFailure(was, now) != nil }

// startFailure returns the event of that failure, nil for none.
func startFailure(was, now *api.TaskState) (failure *api.TaskEvent) {
	var last *api.TaskEvent
	if n := len(was.Events); n > 0 {
		last = was.Events[n-1]
	}
	for _, e := range eventsAfter(last, now.Events) {
		switch e.Type {
		case api.TaskStarted:
			failure = nil
		case api.TaskDriverFailure, api.TaskFailedValidation, api.TaskSetupFailure, api.TaskArtifactDownloadFailed:
			failure = e
		}
	}
	return failure
}

// endedSince reports whether the process that a task had at was has ended, and another follows it.
func endedSince(was, now *api.TaskState) bool {
	return now.State == "pending" || !now.StartedAt.Equal(was.StartedAt)
}

// paused reports whether an operator or its schedule keeps a task from running.
func paused(_, now *api.TaskState) bool { return interfaces.ShownSchedule(now).Pauses() }

func running(_, now *api.TaskState) bool { return now.State == "running" }

func failed(_, now *api.TaskState) bool { return now.Failed }
