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

// WaitOptions name the state to wait for: --wait of run, --until of test.
type WaitOptions struct {
	name    string // of the flag
	What    string // empty to wait for nothing
	Timeout time.Duration
}

// add adds the flags, NAME and NAME-timeout.
func (o *WaitOptions) add(cmd *cobra.Command, name, what, usage string, timeout time.Duration, timeoutUsage string) {
	o.name = name
	cmd.Flags().StringVar(&o.What, name, what, usage)
	cmd.Flags().DurationVar(&o.Timeout, name+"-timeout", timeout, timeoutUsage)
	// the flag has just been added
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(waits, cobra.ShellCompDirectiveNoFileComp))
}

// CheckFlags checks the flags alone.
func (o *WaitOptions) CheckFlags(f *pflag.FlagSet) error {
	timeout := f.Lookup(o.name + "-timeout")
	switch {
	case timeout.Changed && o.Timeout <= 0:
		return base.Usagef("--%s %v is not more than 0", timeout.Name, o.Timeout)
	case timeout.Changed && o.What == "":
		return base.Usagef("--%s is for --%s", timeout.Name, o.name)
	case (f.Changed(o.name) || o.What != "") && !slices.Contains(waits, o.What):
		return base.Usagef("--%s %q is none of %s", o.name, o.What, strings.Join(waits, ", "))
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
