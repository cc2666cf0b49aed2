package start

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/children"
	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/settings"
	"taskapi/internal/safedir"
	"taskapi/internal/slice"
)

// Children starts the children of this process's allocation as run --detach does, with the settings of its run.
type Children struct {
	Layout      base.Layout
	Record      settings.Record
	SealKey     string // a file, which no record has; empty for none
	Environment base.Environment
	Events      agent.Events
	Logger      *slog.Logger

	// Background runs a command of this program in the background, and returns when done is satisfied.
	Background func(ctx context.Context, t base.Target, w base.Environment, args []string,
		done func(*api.Allocation) (bool, error)) error
}

var _ children.Host = (*Children)(nil)

// Say prints an event of the allocation.
func (h *Children) Say(kind, message string, pairs ...string) {
	h.Events.AllocEvent(kind, message, pairs...)
}

// Start runs a child in the background. Errors: *interfaces.ChildError for a child that can't run at all. After an
// error, nothing is left of a child that has not begun.
func (h *Children) Start(ctx context.Context, id, group string, job json.RawMessage) error {
	t := base.Target{Layout: h.Layout, ID: id}
	saved, err := h.Layout.Peek(id)
	if err != nil || saved != nil { // it has begun
		return err
	}
	dir := h.Layout.Alloc(id)
	if err := safedir.MakePassable(dir); err != nil {
		return fmt.Errorf("allocation directory %s can't be made: %w", dir, agent.UnwrapPath(err))
	}
	if err := h.Record.Save(dir); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	args := []string{"run", "--data-dir=" + string(h.Layout.Dir), "--alloc-id=" + id, "--group=" + group}
	if key := h.SealKey; key != "" { // no record has it
		args = append(args, "--option="+settings.SealKey+"="+key)
	}
	job = slices.Concat([]byte(`{"Job":`), job, []byte("}"))
	begun := func(*api.Allocation) (bool, error) { return true, nil }
	err = h.background(ctx, t, job, append(args, "--", "-"), begun)
	if _, exited := errors.AsType[base.ExitError](err); !exited {
		return err
	}
	switch saved, unread := h.Layout.Peek(id); {
	case saved != nil: // a process that an earlier taskapi started for it was faster
		return nil
	case unread == nil:
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if base.ExitCode(err) == base.ExitUsage {
		return &interfaces.ChildError{Err: err}
	}
	return err
}

// background runs a command for a child in the background. Its error has what the command has printed.
func (h *Children) background(ctx context.Context, t base.Target, stdin []byte, args []string,
	done func(*api.Allocation) (bool, error)) error {
	var said bytes.Buffer
	w := h.Environment
	w.Stdin, w.Stderr = bytes.NewReader(stdin), &said
	err := h.Background(ctx, t, w, args, done)
	if err == nil {
		return nil
	}
	if why := strings.TrimSpace(strings.ReplaceAll(said.String(), "taskapi: ", "")); why != "" {
		return &childError{why, err}
	}
	return err
}

// childError is what a child's process has printed before it has failed.
type childError struct {
	words string
	err   error
}

func (e *childError) Error() string { return e.words }
func (e *childError) Unwrap() error { return e.err }

// Children returns the children of a job, the newest first.
func (h *Children) Children(
	ctx context.Context, parent *api.Allocation, ended bool,
) ([]*api.Allocation, error) {
	found, err := h.Layout.Children(ctx, parent, ended)
	return slice.Map(found, func(t base.Target) *api.Allocation { return t.Alloc }), err
}

// Resume takes over the children whose taskapi has exited before they ended.
func (h *Children) Resume(ctx context.Context, parent *api.Allocation) {
	left, _ := h.Layout.Children(ctx, parent, false) // those that are known
	for _, t := range left {
		c := t.Client()
		holder := c.Locate(ctx, client.Timeouts{}).Holder
		c.Close()
		if holder != client.Nobody {
			continue
		}
		goesOn := func(alloc *api.Allocation) (bool, error) { return !interfaces.Ended(alloc), nil }
		args := []string{"takeover", "--data-dir=" + string(h.Layout.Dir), t.ID}
		if err := h.background(ctx, t, nil, args, goesOn); err != nil {
			h.Logger.Warn("a child whose taskapi has exited could not be resumed", "job", t.Alloc.JobID, "error", err)
			continue
		}
		h.Say("Resumed", fmt.Sprintf("%s, allocation %s, whose taskapi had exited", t.Alloc.JobID, t.ID),
			"job", t.Alloc.JobID, "allocation", t.ID)
	}
}
