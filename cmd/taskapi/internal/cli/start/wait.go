package start

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/linewriter"
)

// The states that run --detach --wait waits for.
const (
	WaitHealthy  = "healthy"
	WaitRunning  = "running"
	WaitComplete = "complete"
)

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
		return fmt.Errorf("allocation %s has failed: %s", alloc.ID,
			linewriter.OneLine(cmp.Or(alloc.ClientDescription, "one of its tasks did")))
	case o.What == WaitHealthy && health == "unhealthy":
		return fmt.Errorf("allocation %s is unhealthy: %s", alloc.ID, strings.Join(Problems(alloc), ", "))
	case o.What == WaitHealthy && health == "":
		return fmt.Errorf("allocation %s has ended (%s) before it was healthy", alloc.ID, alloc.ClientStatus)
	}
	return nil
}
