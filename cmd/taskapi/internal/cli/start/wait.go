package start

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/pflag"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/linewriter"
)

// What run --detach --wait waits for.
const (
	WaitHealthy  = "healthy"
	WaitRunning  = "running"
	WaitComplete = "complete"
)

// DefaultWait is how long it waits; an allocation that runs to its end may take any time.
const DefaultWait = 10 * time.Minute

var Waits = []string{WaitHealthy, WaitRunning, WaitComplete}

// WaitOptions are flags of taskapi run.
type WaitOptions struct {
	What    string // empty to wait for nothing
	Timeout time.Duration
}

func (o *WaitOptions) Add(f *pflag.FlagSet) {
	f.StringVar(&o.What, "wait", "", "with --detach, return when the allocation is healthy, running or complete, or exit with 1 and the reason when it can't be any more")
	f.Lookup("wait").NoOptDefVal = WaitHealthy
	f.DurationVar(&o.Timeout, "wait-timeout", 0, "how long --wait waits (default "+DefaultWait.String()+", without end for complete)")
}

// CheckFlags checks the flags alone.
func (o *WaitOptions) CheckFlags(f *pflag.FlagSet, detach bool) error {
	switch {
	case f.Changed("wait-timeout") && o.Timeout <= 0:
		return base.Usage(fmt.Errorf("--wait-timeout %v is not more than 0", o.Timeout))
	case f.Changed("wait-timeout") && !f.Changed("wait"):
		return base.Usage(errors.New("--wait-timeout is for --wait"))
	case !f.Changed("wait"):
		return nil
	case !slices.Contains(Waits, o.What):
		return base.Usage(fmt.Errorf("--wait %q is none of healthy, running, complete", o.What))
	case !detach:
		return base.Usage(errors.New("--wait is for --detach: in the foreground, run returns when the allocation has ended"))
	}
	return nil
}

// Check refuses to wait for what never comes.
func (o *WaitOptions) Check(alloc *api.Allocation) error {
	if o.What == WaitHealthy && !allocrunner.DecidesHealth(alloc) {
		return fmt.Errorf("--wait=healthy: nothing decides whether group %q is healthy, since its job is of type batch, or its update block says so: "+
			"give --wait=running or --wait=complete", alloc.TaskGroup)
	}
	return nil
}

// Settled reports whether the allocation is what is waited for, or can't be any more.
func (o *WaitOptions) Settled(alloc *api.Allocation) bool {
	_, decided := base.HealthOf(alloc)
	return o.What == WaitHealthy && decided || o.What == WaitRunning && alloc.ClientStatus == api.AllocClientStatusRunning ||
		o.What != WaitComplete && interfaces.Ended(alloc)
}

// Result says why the allocation is not what was waited for; nil when it is.
func (o *WaitOptions) Result(alloc *api.Allocation) error {
	health, _ := base.HealthOf(alloc)
	switch {
	case alloc.ClientStatus == api.AllocClientStatusFailed:
		return fmt.Errorf("allocation %s has failed: %s", alloc.ID, linewriter.OneLine(cmp.Or(alloc.ClientDescription, "one of its tasks did")))
	case o.What == WaitHealthy && health == "unhealthy":
		return fmt.Errorf("allocation %s is unhealthy: %s", alloc.ID, strings.Join(Problems(alloc), ", "))
	case o.What == WaitHealthy && health == "":
		return fmt.Errorf("allocation %s has ended (%s) before it was healthy", alloc.ID, alloc.ClientStatus)
	}
	return nil
}
