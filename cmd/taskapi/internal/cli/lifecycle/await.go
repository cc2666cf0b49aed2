package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/cmd/taskapi/internal/client"
)

// await returns when the allocation is as --wait says. Errors: why it is not and can't be any more, with the latest
// output of the task that is to blame, or that the time is over.
func (r *request) await(ctx context.Context) error {
	timeout := r.options.Until.Timeout
	if timeout == 0 && r.options.Until.What != start.WaitComplete {
		timeout = start.DefaultWait
	}
	if timeout > 0 {
		over := fmt.Errorf("allocation %s is not %s after %v, and runs on", r.alloc.ID, r.options.Until.What, timeout)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, over)
		defer cancel()
	}
	if r.options.Until.What == start.WaitHealthy {
		saying, end := context.WithCancel(ctx)
		var said sync.WaitGroup
		said.Go(func() {
			sayChecks(saying, r.environment.Stderr, r.target().Checks)
		})
		defer said.Wait()
		defer end()
	}
	f := &follow.Follower{Target: r.target(), Quiet: true, Until: r.options.Until.Settled}
	alloc, err := f.Follow(ctx)
	if err != nil {
		if interrupted, ok := errors.AsType[*start.InterruptedError](err); ok {
			err = fmt.Errorf("%s: this command waits no longer for allocation %s, which runs on; '%s' stops it",
				interrupted.Signal, r.alloc.ID, r.layout.Command("stop", r.alloc.ID))
		}
		if ctx.Err() != nil && f.Last != nil {
			err = start.WithCauses(r.layout, f.Last, r.checks(ctx), err)
		}
		return err
	}
	err = r.options.Until.Result(alloc)
	if err == nil {
		return nil
	}
	return start.WithCauses(r.layout, alloc, r.checks(ctx), err)
}

// sayChecks is silent as long as checks usually take to succeed. Then it prints which don't, and each change of a
// check's status, until ctx ends.
func sayChecks(ctx context.Context, out io.Writer, latest func(context.Context) (api.AllocCheckStatuses, error)) {
	said := map[string]string{}
	for pause := 10 * time.Second; ; pause = time.Second {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		checks, err := latest(ctx)
		if err != nil { // follow reports it
			continue
		}
		for _, c := range base.SortedChecks(checks) {
			if c.Status == said[c.ID] || c.Status == base.CheckSuccess && said[c.ID] == "" {
				continue
			}
			said[c.ID] = c.Status
			fmt.Fprintf(out, "taskapi: %s\n", start.CheckWords(c))
		}
	}
}

// checks returns the latest results of the allocation's checks, none when it can't be asked.
func (r *request) checks(ctx context.Context) api.AllocCheckStatuses {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), client.Brief.Busy)
	defer cancel()
	checks, err := r.target().Checks(ctx)
	if err != nil {
		return nil
	}
	return checks
}
