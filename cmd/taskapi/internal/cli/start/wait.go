package start

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
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/internal/ptr"
	"taskapi/internal/wake"
)

// The states that run --detach --wait waits for.
const (
	WaitHealthy  = "healthy"
	WaitRunning  = "running"
	WaitComplete = "complete"
)

// Started is for Begin alone: --detach returns when the main tasks have started.
var Started = WaitOptions{What: "started"}

const (
	// DefaultWait is how long run waits; an allocation that runs to its end may take any time.
	DefaultWait = 10 * time.Minute
	// defaultTestWait is how long test waits.
	defaultTestWait = 5 * time.Minute
)

var waits = []string{WaitHealthy, WaitRunning, WaitComplete}

// WaitOptions are the flags --wait and --wait-timeout, which name the state to wait for.
type WaitOptions struct {
	What    string // empty to wait for nothing
	Timeout time.Duration
}

// add adds the flags.
func (o *WaitOptions) add(cmd *cobra.Command, what string, timeout time.Duration) {
	cmd.Flags().StringVar(&o.What, "wait", what, "wait until the allocation is `STATE`: healthy, running or complete")
	cmd.Flags().DurationVar(&o.Timeout, "wait-timeout", timeout, "how long --wait waits")
	// the flag has just been added
	_ = cmd.RegisterFlagCompletionFunc("wait", cobra.FixedCompletions(waits, cobra.ShellCompDirectiveNoFileComp))
}

// AddOptional adds the flags to a command that waits for nothing unless they are given. usage is the text of --wait
// before the states.
func (o *WaitOptions) AddOptional(cmd *cobra.Command, usage string) {
	o.add(cmd, "", 0)
	wait := cmd.Flags().Lookup("wait")
	wait.NoOptDefVal, wait.Usage = WaitHealthy, usage+" `STATE`: healthy, running or complete"
	cmd.Flags().Lookup("wait-timeout").DefValue = DefaultWait.String() + ", without end for complete"
}

// CheckArgs refuses a state that stands after a blank, and so is an argument. The command takes one argument.
func (o *WaitOptions) CheckArgs(f *pflag.FlagSet, args []string) error {
	if len(args) == 2 && f.Changed("wait") && slices.Contains(waits, args[0]) {
		return base.Usagef("--wait takes its state after an equals sign: --wait=%s", args[0])
	}
	return nil
}

// CheckFlags checks the flags alone.
func (o *WaitOptions) CheckFlags(f *pflag.FlagSet) error {
	timeout := f.Lookup("wait-timeout")
	switch {
	case timeout.Changed && o.Timeout <= 0:
		return base.Usagef("--wait-timeout %v is not more than 0", o.Timeout)
	case timeout.Changed && o.What == "":
		return base.Usagef("--wait-timeout is for --wait")
	case (f.Changed("wait") || o.What != "") && !slices.Contains(waits, o.What):
		return base.Usagef("--wait %q is none of %s", o.What, strings.Join(waits, ", "))
	}
	return nil
}

// Check refuses a state that the allocation can never reach.
func (o *WaitOptions) Check(alloc *api.Allocation) error {
	if o.What == WaitHealthy && !allocrunner.DecidesHealth(alloc) {
		return fmt.Errorf("--wait=healthy: nothing decides whether group %q is healthy, since its job is of type batch, or "+
			"its update block says so: give --wait=running or --wait=complete", alloc.TaskGroup)
	}
	return nil
}

// Settled reports whether the allocation has reached the wanted state, or can't reach it any more.
func (o *WaitOptions) Settled(alloc *api.Allocation) bool {
	_, decided := base.HealthOf(alloc)
	return o.What == WaitHealthy && decided || o.What == WaitRunning &&
		alloc.ClientStatus == api.AllocClientStatusRunning || o.What != WaitComplete && interfaces.Ended(alloc)
}

// Result says why the allocation has not reached the wanted state; nil if it has.
func (o *WaitOptions) Result(alloc *api.Allocation) error {
	health, _ := base.HealthOf(alloc)
	switch {
	case alloc.ClientStatus == api.AllocClientStatusFailed:
		why := linewriter.OneLine(cmp.Or(alloc.ClientDescription, "one of its tasks did"))
		for _, name := range base.TaskNames(alloc) {
			if state := alloc.TaskStates[name]; state != nil && state.Failed {
				why += fmt.Sprintf(", task %q is %s", name, output.TaskState(state))
			}
		}
		return fmt.Errorf("allocation %s has failed: %s", alloc.ID, why)
	case o.What == WaitHealthy && health == "unhealthy":
		return fmt.Errorf("allocation %s is unhealthy: %s", alloc.ID, strings.Join(Problems(alloc), ", "))
	case o.What == WaitHealthy && health == "":
		return fmt.Errorf("allocation %s has ended (%s) before it was healthy", alloc.ID, alloc.ClientStatus)
	}
	return nil
}

// Await returns when the followed allocation is in the wanted state. Meanwhile Say writes to out. Errors: why the
// allocation can't reach that state any more, with the latest output of the task that is to blame; the time is over.
func (o *WaitOptions) Await(ctx context.Context, f *follow.Follower, out io.Writer) error {
	t, timeout := f.Target, o.Timeout
	if timeout == 0 && o.What != WaitComplete {
		timeout = DefaultWait
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout,
			fmt.Errorf("allocation %s is not %s after %v, and runs on", t.ID, o.What, timeout))
		defer cancel()
	}
	defer o.Begin(ctx, t, out)()
	f.Until = o.Settled
	alloc, err := f.Follow(ctx)
	if err == nil {
		if err = o.Result(alloc); err == nil {
			return nil
		}
		return WithCauses(t.Layout, alloc, latestChecks(ctx, t), err)
	}
	if errors.Is(err, context.Canceled) {
		by := "" // the signal, where it is known
		if interrupted, ok := errors.AsType[*InterruptedError](err); ok {
			by = interrupted.Signal.String() + ": "
		}
		err = fmt.Errorf("%sthis command waits no longer for allocation %s, which runs on; '%s' stops it", by, t.ID,
			t.Layout.Command("stop", t.ID))
	}
	if ctx.Err() != nil && f.Last != nil {
		err = WithCauses(t.Layout, f.Last, latestChecks(ctx, t), err)
	}
	return err
}

// latestChecks returns the latest results of the allocation's checks, none if its taskapi does not answer.
func latestChecks(ctx context.Context, t base.Target) api.AllocCheckStatuses {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), client.Brief.Busy)
	defer cancel()
	checks, _ := t.Checks(ctx)
	return checks
}

// quiet is how long a wait says nothing: most are shorter.
const quiet = 2 * time.Second

// Begin has Say write to out what the target's taskapi answers, until end is called.
func (o *WaitOptions) Begin(ctx context.Context, t base.Target, out io.Writer) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var said sync.WaitGroup
	said.Go(func() {
		o.Say(ctx, out, func() (alloc *api.Allocation, checks api.AllocCheckStatuses, err error) {
			err = t.Ask(ctx, func(c *client.Client, sdk *api.Client) error {
				if alloc, _, err = c.Allocation(ctx); err == nil {
					checks, err = sdk.Allocations().Checks(t.ID, (&api.QueryOptions{}).WithContext(ctx))
				}
				return err
			})
			return alloc, checks, err
		})
	})
	return func() {
		cancel()
		said.Wait()
	}
}

// Say is silent for two seconds. Then it says what is missing of the wanted state, and again whenever that is something
// else, until ctx ends.
func (o *WaitOptions) Say(ctx context.Context, out io.Writer,
	latest func() (*api.Allocation, api.AllocCheckStatuses, error)) {
	said := ""
	for pause := quiet; wake.Sleep(ctx, pause) == nil; pause = time.Second {
		alloc, checks, err := latest()
		if err != nil || o.Settled(alloc) { // who waits reports it
			continue
		}
		if what, more := o.missing(alloc, checks); what != said {
			said = what
			fmt.Fprintf(out, "taskapi: waiting until allocation %s is %s: %s%s\n", output.ShortID(alloc.ID), o.What, what, more)
		}
	}
}

// missing says what is missing of the wanted state, and details of that, which change more often.
func (o *WaitOptions) missing(alloc *api.Allocation, checks api.AllocCheckStatuses) (what, details string) {
	if o.What != WaitHealthy {
		return strings.Join(Problems(alloc), ", "), ""
	}
	what, task, check := allocrunner.HealthProblem(alloc, checks)
	switch {
	case !allocrunner.DecidesHealth(alloc):
		return "health_check is manual: set its health with PUT /v1/deployment/allocation-health/…", ""
	case what == "":
		return fmt.Sprintf("it is, and has to stay so for min_healthy_time, %v",
			ptr.Deref(alloc.GetTaskGroup().Update.MinHealthyTime)), ""
	case check != "":
		details = output.CheckOutput(checks[check])
	case task != "":
		if state := alloc.TaskStates[task]; state != nil && state.State == "pending" && len(state.Events) > 0 {
			details = state.Events[len(state.Events)-1].DisplayMessage
		}
	}
	if details != "" {
		details = ": " + base.Clipped(linewriter.OneLine(details), base.MaxLastLine)
	}
	return what, details
}
