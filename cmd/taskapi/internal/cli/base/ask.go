package base

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/cluster/claim"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/schedule"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/output"
)

// Ask calls the API of the taskapi that runs the allocation, with the present token. Errors say what the caller can do.
// They are usage errors if the API refuses the request as wrong, and name who has the allocation if no taskapi answers.
func (t Target) Ask(ctx context.Context, call func(*client.Client, *api.Client) error) error {
	c := t.Client()
	defer c.Close()
	// This waits for a taskapi that resumes the allocation. The call itself might wait for ever for a taskapi that hangs.
	if found := c.Locate(ctx, client.Following); found.Holder == client.Hanging {
		return t.Layout.ErrHeld(t.ID, found.Err)
	}
	sdk, err := c.SDK()
	if err == nil {
		err = client.AsError(ctx, call(c, sdk))
	}
	return t.Explain(ctx, c, err)
}

// Explain adds to an error of the API its object, or the reason why there is no answer.
func (t Target) Explain(ctx context.Context, c *client.Client, err error) error {
	if status, ok := errors.AsType[*client.StatusError](err); ok && !client.Refused(err) {
		err := fmt.Errorf("%s: %w%s", t, status, t.whyIdle(ctx, c, status))
		if status.Status == http.StatusBadRequest {
			return Usage(err)
		}
		return err
	}
	if err == nil || !errors.Is(err, client.ErrNoAnswer) && !client.Refused(err) {
		return err
	}
	if why := t.ErrUnserved(c.Locate(ctx, client.Brief)); why != nil {
		return why
	}
	return fmt.Errorf("allocation %s: %w", output.ShortID(t.ID), err)
}

// whyIdle says, to follow a conflict about a task, why it does not run, and what starts it.
func (t Target) whyIdle(ctx context.Context, c *client.Client, status *client.StatusError) string {
	if status.Status != http.StatusConflict || t.Task == "" {
		return ""
	}
	alloc, _, err := c.Allocation(ctx)
	if err != nil {
		return ""
	}
	state := alloc.TaskStates[t.Task]
	switch why := t.WhyPaused(alloc); {
	case why != "":
		return ": " + why
	case state != nil && state.State == "dead":
		return fmt.Sprintf(": it has ended; '%s' runs all tasks again, from the beginning",
			t.Layout.Command("restart", "--all-tasks", output.ShortID(t.ID)))
	}
	return ""
}

// WhyPaused says why the target's task is stopped or paused, until when, and what starts it. It is empty for a task
// that runs.
func (t Target) WhyPaused(alloc *api.Allocation) string {
	start := func(flags ...string) string {
		return t.Layout.Command("start", append(flags, output.ShortID(t.ID), t.Task)...)
	}
	switch interfaces.ShownSchedule(alloc.TaskStates[t.Task]) {
	case interfaces.ScheduleForcedPause:
		return fmt.Sprintf("it is stopped; '%s' starts it", start())
	case interfaces.SchedulePause:
		t.Alloc = alloc
		until := ""
		times, err := schedule.Parse(t.spec().Schedule)
		if _, change := times.At(time.Now()); err == nil && !change.IsZero() {
			until = " until " + output.Date(change)
		}
		return fmt.Sprintf("its schedule pauses it%s; '%s' runs it now", until, start("--force"))
	}
	return ""
}

// ErrUnserved says why no taskapi answers for an allocation that was located, nil when one does.
func (t Target) ErrUnserved(found client.Location) error {
	switch found.Holder {
	case client.Refusing, client.Hanging:
		return t.Layout.ErrHeld(t.ID, found.Err)
	case client.Ended:
		return &EndedError{t, found}
	case client.Nobody:
		return &AbandonedError{t}
	case client.Unreadable:
		return t.Layout.ErrUnreadable(t.ID, found.Err)
	}
	return nil
}

// EndedError says that an allocation has ended, so it can't do what only a running one can.
type EndedError struct {
	Target
	found client.Location
}

func (e *EndedError) Error() string {
	return fmt.Sprintf("allocation %s (job %q) has ended (%s); '%s' shows it", output.ShortID(e.ID), e.found.Alloc.JobID,
		e.found.Alloc.ClientStatus, e.Layout.Command("status", output.ShortID(e.ID)))
}

// AbandonedError says that an allocation's taskapi has exited before the allocation ended.
type AbandonedError struct {
	Target
}

func (e *AbandonedError) Error() string {
	return fmt.Sprintf("allocation %s: its taskapi has exited and its tasks %s: '%s' resumes it, '%s' stops it",
		e.ID, e.Layout.TasksNow(e.ID), e.Layout.Command("takeover", e.ID), e.Layout.Command("stop", e.ID))
}

// HasClaim reports whether an allocation was left running with a claim, with which its next taskapi goes on.
func (l Layout) HasClaim(id string) bool {
	_, err := os.Lstat(l.Claim(id))
	return err == nil
}

// TasksGone reports whether an allocation has no process left. The saved state may still say that its tasks run, if its
// taskapi has exited.
func (l Layout) TasksGone(id string) bool {
	left, err := allocrunner.OrphansRun(l.Alloc(id))
	return err == nil && !left
}

// TasksNow says what the tasks of an allocation do whose taskapi has exited.
func (l Layout) TasksNow(id string) string {
	switch claimed, gone := l.HasClaim(id), l.TasksGone(id); {
	case claimed && gone:
		return "were killed, because another machine may run it"
	case claimed:
		return fmt.Sprintf("are killed within %v, because another machine may run it", claim.Held)
	case gone:
		return "have ended"
	}
	return "may run on"
}

// Client returns a client of the taskapi that runs an allocation.
func (l Layout) Client(id string) *client.Client { return client.New(l.Dir, id) }

// ErrHeld says why the taskapi that has an allocation can't be used, and what helps. err is its answer, or the reason
// why there is none.
func (l Layout) ErrHeld(id string, err error) error {
	if client.Refused(err) {
		return fmt.Errorf("allocation %s is run by a taskapi that refuses the token in %s: %w; "+
			"'%s' replaces it by one with a good token", id, l.OperatorToken(id), err, l.Command("takeover", id))
	}
	if frozen, ok := errors.AsType[*client.FrozenError](err); ok {
		return fmt.Errorf("allocation %s is run by a taskapi that does not answer: %w; 'kill -CONT %d' lets it go on, "+
			"'%s' kills it and its tasks", id, frozen, frozen.PID, l.Command("stop --now", id))
	}
	return fmt.Errorf("allocation %s is run by a taskapi that does not answer; it may be starting: try again: %w", id, err)
}

// WithJobFile completes a command line that runs an allocation again.
const WithJobFile = "with the job file and its variables"

// ErrNoState is for an allocation without a saved state.
func (l Layout) ErrNoState(id string) error {
	return fmt.Errorf("allocation %s has no saved state: its taskapi ended before a task ran, or was killed early; "+
		"'%s' removes it", id, l.Command("gc", id))
}

// ErrUnreadable is for an allocation that no taskapi runs, and whose state can't be read.
func (l Layout) ErrUnreadable(id string, err error) error {
	if errors.Is(err, state.ErrNotFound) {
		return l.ErrNoState(id)
	}
	return fmt.Errorf("allocation %s: %w", id, l.Explain(err))
}
