package lifecycle

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
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/cmd/taskapi/internal/settings"
)

// childHost starts the children of this process's allocation as run --detach does, with the settings of this run.
type childHost struct {
	request *request
	events  agent.Events
	logger  *slog.Logger
}

var _ children.Host = (*childHost)(nil)

// Say prints an event of the allocation.
func (h *childHost) Say(kind, message string, pairs ...string) {
	h.events.AllocEvent(kind, message, pairs...)
}

// Start runs a child in the background.
func (h *childHost) Start(ctx context.Context, id, group string, job json.RawMessage) error {
	r := h.request
	t := base.Target{Layout: r.layout, ID: id}
	saved, err := r.layout.Peek(id)
	if err != nil || saved != nil { // it has begun
		return err
	}
	dir := r.layout.Alloc(id)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return fmt.Errorf("allocation directory %s can't be made: %w", dir, agent.UnwrapPath(err))
	}
	if err := r.record.Save(dir); err != nil {
		return err
	}
	args := []string{"run", "--data-dir=" + string(r.layout.Dir), "--alloc-id=" + id, "--group=" + group}
	if key := r.options.SealKey; key != "" { // no record has it
		args = append(args, "--option="+settings.SealKey+"="+key)
	}
	job = slices.Concat([]byte(`{"Job":`), job, []byte("}"))
	begun := func(*api.Allocation) (bool, error) { return true, nil }
	err = h.background(ctx, t, job, append(args, "--", "-"), begun)
	if saved, unread := r.layout.Peek(id); base.ExitCode(err) == base.ExitUsage && saved == nil && unread == nil {
		err = errors.Join(err, os.RemoveAll(dir)) // nothing of it has begun
	}
	return err
}

// background runs a command for a child in the background. Its error has what the command has printed.
func (h *childHost) background(ctx context.Context, t base.Target, stdin []byte, args []string,
	done func(*api.Allocation) (bool, error)) error {
	var said bytes.Buffer
	w := h.request.environment
	w.Stdin, w.Stderr = bytes.NewReader(stdin), &said
	err := background(ctx, t, w, args, nil, done)
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
func (h *childHost) Children(
	ctx context.Context, parent *api.Allocation, ended bool,
) (all []*api.Allocation, err error) {
	found, err := h.request.layout.Children(ctx, parent, ended)
	for _, t := range found {
		all = append(all, t.Alloc)
	}
	return all, err
}

// sayChildren names the children of a stopped allocation that run on, as they do in Nomad.
func sayChildren(ctx context.Context, t base.Target, w base.Environment) {
	if t.Alloc == nil || t.Alloc.Job == nil || !interfaces.IsParent(t.Alloc.Job) {
		return
	}
	running, _ := t.Layout.Children(ctx, t.Alloc, false) // those that are known
	for _, child := range running {
		w.Warnf("%s runs on: '%s' stops it", child.Alloc.JobID, t.Layout.Command("stop", output.ShortID(child.ID)))
	}
}

// Resume takes over the children whose taskapi has exited before they ended.
func (h *childHost) Resume(ctx context.Context, parent *api.Allocation) {
	r := h.request
	left, _ := r.layout.Children(ctx, parent, false) // those that are known
	for _, t := range left {
		c := t.Client()
		holder := c.Locate(ctx, client.Timeouts{}).Holder
		c.Close()
		if holder != client.Nobody {
			continue
		}
		goesOn := func(alloc *api.Allocation) (bool, error) { return !interfaces.Ended(alloc), nil }
		args := []string{"takeover", "--data-dir=" + string(r.layout.Dir), t.ID}
		if err := h.background(ctx, t, nil, args, goesOn); err != nil {
			h.logger.Warn("a child whose taskapi has exited could not be resumed", "job", t.Alloc.JobID, "error", err)
			continue
		}
		h.Say("Resumed", fmt.Sprintf("%s, allocation %s, whose taskapi had exited", t.Alloc.JobID, t.ID),
			"job", t.Alloc.JobID, "allocation", t.ID)
	}
}
