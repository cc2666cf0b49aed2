package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"taskapi/allocrunner"
	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec"
)

// handOver hands the job to the taskapi that runs the allocation, if one does, or has that leave the allocation to this one. When it is not
// answered, err may say why.
func (r *request) handOver(ctx context.Context) (answered bool, err error) {
	if !r.options.takeOver {
		return r.updateRunning(ctx)
	}
	c := r.layout.client(r.alloc.ID)
	defer c.close()
	if err := r.canTakeOver(ctx, c); err != nil {
		return true, err
	}
	if err := c.askToLeave(ctx); err != nil && !errors.Is(err, errSilentSidecar) {
		return true, err
	}
	return false, nil
}

// canTakeOver looks at what would have this process fail once the other has left: tasks that nobody looks after would be what remains.
func (r *request) canTakeOver(ctx context.Context, c *client) error {
	saved, err := r.layout.Peek(r.alloc.ID)
	if err != nil {
		return r.layout.explain(err)
	}
	if err := r.options.tryFiles(r.layout); err != nil {
		return err
	}
	if saved != nil && !saved.Over {
		if err := r.errOtherUsers(); err != nil {
			return err
		}
	}
	is, _, err := c.allocation(ctx)
	if errors.Is(err, context.DeadlineExceeded) { // it would hear of it some time later, when nobody is there to go on
		return r.layout.errMute(r.alloc.ID, err)
	}
	if err != nil { // nobody is there, or one who will not have us; the state says what there is to go on with
		return nil //nolint:nilerr // as above
	}
	changes, err := datadir.Compare(is, r.alloc, r.options.force)
	if err != nil || saved == nil || len(changes) == 0 || len(jobspec.Destructive(changes)) > 0 {
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
