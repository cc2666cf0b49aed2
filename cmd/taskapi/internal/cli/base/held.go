package base

import (
	"errors"
	"fmt"

	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/client"
)

// Client returns a client of the taskapi that runs an allocation.
func (l Layout) Client(id string) *client.Client { return client.New(l.Dir, id) }

// ErrHeld says why the taskapi that has an allocation can't be used, and what helps. err is what it answered, or why it did not.
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
	return fmt.Errorf("allocation %s has no saved state: its taskapi ended before a task ran, or was killed early; '%s' removes it", id, l.Command("gc", id))
}

// ErrUnreadable is for an allocation that no taskapi runs, and whose state can't be read.
func (l Layout) ErrUnreadable(id string, err error) error {
	if errors.Is(err, state.ErrNotFound) {
		return l.ErrNoState(id)
	}
	return fmt.Errorf("allocation %s: %w", id, l.Explain(err))
}
