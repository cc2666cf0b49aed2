package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/client"
)

// handOver gives the job to the taskapi that runs the allocation, or makes that leave the allocation to this one. done is false when this
// process is to run the allocation.
func (r *request) handOver(ctx, waiting context.Context) (done bool, err error) {
	if !r.options.takeOver {
		return r.updateRunning(ctx, waiting)
	}
	c := r.layout.client(r.alloc.ID)
	defer c.Close()
	if err := r.canTakeOver(ctx, c); err != nil {
		return true, err
	}
	if _, err := c.Signal(ctx, syscall.SIGUSR1); err != nil && !errors.Is(err, client.ErrNoAnswer) {
		return true, fmt.Errorf("the taskapi of allocation %s: %w", r.alloc.ID, err)
	}
	return false, nil
}

// canTakeOver checks whatever would make this process fail once the other has left, which would leave tasks without a taskapi.
func (r *request) canTakeOver(ctx context.Context, c *client.Client) error {
	saved, err := r.layout.Peek(r.alloc.ID)
	if err != nil {
		return r.layout.explain(err)
	}
	if err := r.options.tryFiles(r.layout); err != nil {
		return err
	}
	if saved != nil && !saved.Terminal {
		if err := r.errOtherUsers(); err != nil {
			return err
		}
	}
	found := c.Locate(ctx, client.Timeouts{})
	switch found.Holder {
	case client.Hanging: // it would act on the signal some time later, when this process has given up
		return r.layout.errHeld(r.alloc.ID, found.Err)
	case client.Serving:
	default: // the saved state says what there is to resume
		return nil
	}
	decision, _, err := allocrunner.Plan(allocrunner.Current{Alloc: found.Alloc}, r.alloc, r.options.force)
	if err != nil || saved == nil || decision != allocrunner.InPlace {
		return r.layout.explain(err)
	}
	runner, err := allocrunner.New(interfaces.Config{Alloc: saved.Alloc, Dir: r.layout.Alloc(saved.Alloc.ID), Logger: slog.New(slog.DiscardHandler), Saved: saved})
	if err != nil {
		return fmt.Errorf("allocation %s: %w", saved.Alloc.ID, err)
	}
	return usage(runner.Validate(r.alloc.Job))
}

// tryFiles reads every file that an agent needs at its start.
func (o *runOptions) tryFiles(l layout) error {
	if _, err := l.openKeyring(o.SealKey); err != nil {
		return err
	}
	return o.TryFiles()
}
