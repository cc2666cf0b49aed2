package main

import (
	"context"
	"errors"
	"log/slog"

	"taskapi/identity"
)

// handOver hands the job to the taskapi that runs the allocation, if one does, or has that leave the allocation to this one.
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
// One that does not answer well has nothing to lose.
func (r *request) canTakeOver(ctx context.Context, c *client) error {
	is, _, err := c.allocation(ctx)
	if err != nil {
		return nil //nolint:nilerr // as above
	}
	if _, err := r.layout.goesOn(is, r.alloc, r.options.force); err != nil {
		return err
	}
	return r.options.tryFiles(r.layout)
}

// tryFiles reads every file that a sidecar needs at its start.
func (o *runOptions) tryFiles(l layout) error {
	if _, err := identity.OpenKeyring(o.keyringConfig(l)); err != nil {
		return err
	}
	if _, err := openIssuers(o.jwks, slog.New(slog.DiscardHandler)); err != nil {
		return err
	}
	if _, err := openPolicy(o.policy); err != nil {
		return err
	}
	f, err := openAudit(o.auditLog)
	if err != nil || f == nil {
		return err
	}
	return f.Close()
}
