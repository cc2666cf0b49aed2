package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/pflag"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/linewriter"
)

// What run --detach --wait waits for.
const (
	waitHealthy  = "healthy"
	waitRunning  = "running"
	waitComplete = "complete"
)

// defaultWait is how long it waits; an allocation that runs to its end may take any time.
const defaultWait = 10 * time.Minute

var waits = []string{waitHealthy, waitRunning, waitComplete}

// waitOptions are flags of taskapi run.
type waitOptions struct {
	what    string // empty to wait for nothing
	timeout time.Duration
}

func (o *waitOptions) add(f *pflag.FlagSet) {
	f.StringVar(&o.what, "wait", "", "with --detach, return when the allocation is healthy, running or complete, or exit with 1 and the reason when it can't be any more")
	f.Lookup("wait").NoOptDefVal = waitHealthy
	f.DurationVar(&o.timeout, "wait-timeout", 0, "how long --wait waits (default "+defaultWait.String()+", without end for complete)")
}

// checkFlags checks the flags alone.
func (o *waitOptions) checkFlags(f *pflag.FlagSet, detach bool) error {
	switch {
	case f.Changed("wait-timeout") && o.timeout <= 0:
		return usage(fmt.Errorf("--wait-timeout %v is not more than 0", o.timeout))
	case f.Changed("wait-timeout") && !f.Changed("wait"):
		return usage(errors.New("--wait-timeout is for --wait"))
	case !f.Changed("wait"):
		return nil
	case !slices.Contains(waits, o.what):
		return usage(fmt.Errorf("--wait %q is none of healthy, running, complete", o.what))
	case !detach:
		return usage(errors.New("--wait is for --detach: in the foreground, run returns when the allocation has ended"))
	}
	return nil
}

// check refuses to wait for what never comes.
func (o *waitOptions) check(alloc *api.Allocation) error {
	if o.what == waitHealthy && !allocrunner.DecidesHealth(alloc) {
		return fmt.Errorf("--wait=healthy: nothing decides whether group %q is healthy, since its job is of type batch, or its update block says so: "+
			"give --wait=running or --wait=complete", alloc.TaskGroup)
	}
	return nil
}

// await returns when the allocation is as --wait says. Errors: why it is not and can't be any more, with the latest output of the task that
// is to blame, or that the time is over.
func (r *request) await(ctx context.Context) error {
	timeout := r.options.until.timeout
	if timeout == 0 && r.options.until.what != waitComplete {
		timeout = defaultWait
	}
	if timeout > 0 {
		over := fmt.Errorf("allocation %s is not %s after %v, and runs on", r.alloc.ID, r.options.until.what, timeout)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, over)
		defer cancel()
	}
	if r.options.until.what == waitHealthy {
		saying, end := context.WithCancel(ctx)
		var said sync.WaitGroup
		said.Go(func() {
			sayChecks(saying, r.environment.Stderr, target{layout: r.layout, id: r.alloc.ID}.checks)
		})
		defer said.Wait()
		defer end()
	}
	f := &follower{layout: r.layout, id: r.alloc.ID, quiet: true, until: r.options.until.settled,
		make: func(a *api.Allocation) *printer { return newPrinter(io.Discard, a, false) }}
	alloc, err := f.follow(ctx)
	if err != nil {
		if interrupted, ok := errors.AsType[*interruptedError](err); ok {
			err = fmt.Errorf("%s: this command waits no longer for allocation %s, which runs on; '%s' stops it",
				interrupted.signal, r.alloc.ID, r.layout.Command("stop", r.alloc.ID))
		}
		if ctx.Err() != nil && f.last != nil {
			err = r.layout.withCauses(f.last, r.checks(ctx), err)
		}
		return err
	}
	err = r.options.until.result(alloc)
	if err == nil {
		return nil
	}
	return r.layout.withCauses(alloc, r.checks(ctx), err)
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
		for _, c := range sortedChecks(checks) {
			if c.Status == said[c.ID] || c.Status == checkSuccess && said[c.ID] == "" {
				continue
			}
			said[c.ID] = c.Status
			fmt.Fprintf(out, "taskapi: %s\n", checkWords(c))
		}
	}
}

// checks returns the latest results of the allocation's checks, none when it can't be asked.
func (r *request) checks(ctx context.Context) api.AllocCheckStatuses {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), client.Brief.Busy)
	defer cancel()
	checks, err := target{layout: r.layout, id: r.alloc.ID}.checks(ctx)
	if err != nil {
		return nil
	}
	return checks
}

// settled reports whether the allocation is what is waited for, or can't be any more.
func (o *waitOptions) settled(alloc *api.Allocation) bool {
	_, decided := healthOf(alloc)
	return o.what == waitHealthy && decided || o.what == waitRunning && alloc.ClientStatus == api.AllocClientStatusRunning ||
		o.what != waitComplete && interfaces.Ended(alloc)
}

// result says why the allocation is not what was waited for; nil when it is.
func (o *waitOptions) result(alloc *api.Allocation) error {
	health, _ := healthOf(alloc)
	switch {
	case alloc.ClientStatus == api.AllocClientStatusFailed:
		return fmt.Errorf("allocation %s has failed: %s", alloc.ID, linewriter.OneLine(cmp.Or(alloc.ClientDescription, "one of its tasks did")))
	case o.what == waitHealthy && health == "unhealthy":
		return fmt.Errorf("allocation %s is unhealthy: %s", alloc.ID, strings.Join(problems(alloc), ", "))
	case o.what == waitHealthy && health == "":
		return fmt.Errorf("allocation %s has ended (%s) before it was healthy", alloc.ID, alloc.ClientStatus)
	}
	return nil
}
