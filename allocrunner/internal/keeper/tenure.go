package keeper

import (
	"context"
	"errors"
	"fmt"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/boottime"
)

// beginTenure begins to follow the tenure, if there is one. There is a connection by now.
func (s *Supervisor) beginTenure() {
	if s.cfg.Tenure != nil {
		s.wg.Go(s.followTenure)
	}
}

// followTenure passes each end of the tenure to the keeper, as long as the Supervisor is used.
func (s *Supervisor) followTenure() {
	for s.ctx.Err() == nil {
		end, changed := s.cfg.Tenure.Until()
		_, _, err := call(s.ctx, s, func(c *Client) (struct{}, error) {
			if end <= 0 {
				return struct{}{}, nil
			}
			return struct{}{}, c.Expire(s.ctx, end)
		})
		// A keeper that is lost has no tasks any more, and the next one gets the end before its first start.
		if err != nil && s.ctx.Err() == nil && !errors.Is(err, drivers.ErrLost) && !errors.Is(err, drivers.ErrClosed) {
			s.cfg.Logger.Error("the keeper does not learn that the tasks may run on, and will kill them", "error", err)
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
		}
	}
}

// awaitTenure waits until tasks may run, and passes the end of that time to the keeper that is to start one. Errors:
// interfaces.ErrTenureLost.
func (s *Supervisor) awaitTenure(ctx context.Context, c *Client) error {
	if s.cfg.Tenure == nil {
		return nil
	}
	for {
		end, changed := s.cfg.Tenure.Until()
		switch {
		case end < 0:
			return fmt.Errorf("start a task: %w", interfaces.ErrTenureLost)
		case end > boottime.Now():
			return c.Expire(ctx, end)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return drivers.ErrClosed
		}
	}
}
