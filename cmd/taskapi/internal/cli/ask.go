package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/output"
)

// ask calls the API of the taskapi that runs the allocation, with a token as it is now. Errors say what the caller can do: usage errors for
// what the API refuses as wrong, and who has the allocation when no taskapi answers.
func (t target) ask(ctx context.Context, call func(*client.Client, *api.Client) error) error {
	c := t.client()
	defer c.Close()
	// It waits for a taskapi that resumes the allocation. The call itself reports an error, but might wait without end
	// for one that hangs.
	if found := c.Locate(ctx, client.Following); found.Holder == client.Hanging {
		return t.layout.errHeld(t.id, found.Err)
	}
	sdk, err := c.SDK()
	if err == nil {
		err = client.AsError(ctx, call(c, sdk))
	}
	return t.explain(ctx, c, err)
}

// explain adds to an error of the API what it is about, or why there is no answer.
func (t target) explain(ctx context.Context, c *client.Client, err error) error {
	if status, ok := errors.AsType[*client.StatusError](err); ok && !client.Refused(err) {
		err := fmt.Errorf("allocation %s: %w", output.ShortID(t.id), status)
		if status.Status == http.StatusBadRequest || status.Status == http.StatusNotFound {
			return usage(err)
		}
		return err
	}
	if err == nil || !errors.Is(err, client.ErrNoAnswer) && !client.Refused(err) {
		return err
	}
	found := c.Locate(ctx, client.Brief)
	switch found.Holder {
	case client.Refusing, client.Hanging:
		return t.layout.errHeld(t.id, found.Err)
	case client.Ended:
		return &endedError{t, found}
	case client.Nobody:
		return &abandonedError{t.layout, t.id}
	case client.Unreadable:
		return t.layout.errUnreadable(t.id, found.Err)
	}
	return fmt.Errorf("allocation %s: %w", output.ShortID(t.id), err)
}

// endedError is an allocation that has ended, asked for what only one that runs can do.
type endedError struct {
	target target
	found  client.Location
}

func (e *endedError) Error() string {
	return fmt.Sprintf("allocation %s (job %q) has ended (%s); '%s' shows it", output.ShortID(e.target.id), e.found.Alloc.JobID,
		e.found.Alloc.ClientStatus, e.target.layout.Command("status", output.ShortID(e.target.id)))
}
