package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// ServiceManager is the program that started this process and waits for word of it, as systemd does.
type ServiceManager struct {
	Send     func(state string) error // sends lines of sd_notify(3); nil when nobody waits for them
	Watchdog time.Duration            // the longest time between two signs of life; 0 for none
}

// notifier is the sink of updates that tells a service manager how the allocation is: READY=1 as soon as one of its
// tasks runs or all have completed, and STATUS= whenever its line is another one.
type notifier struct {
	send  func(state string) error
	ready bool
	last  string // the line that was sent last
}

var _ interfaces.Sink = (*notifier)(nil)

func (*notifier) Name() string { return "service manager" }

func (n *notifier) PutAllocs(_ context.Context, allocs []*api.Allocation) error {
	for _, alloc := range allocs {
		line := statusLine(alloc)
		state := "STATUS=" + line
		ready := n.ready || alloc.ClientStatus == api.AllocClientStatusRunning ||
			alloc.ClientStatus == api.AllocClientStatusComplete
		if ready && !n.ready {
			state = "READY=1\n" + state
		} else if line == n.last {
			continue
		}
		if err := n.send(state); err != nil {
			return err
		}
		n.ready, n.last = ready, line
	}
	return nil
}

// statusLine returns how an allocation is, in a line.
func statusLine(alloc *api.Allocation) string {
	status, running := alloc.ClientStatus, 0
	for _, s := range alloc.TaskStates {
		if s.State == "running" {
			running++
		}
	}
	if !interfaces.Ended(alloc) && alloc.DesiredStatus == api.AllocDesiredStatusStop {
		status = "stopping"
	}
	if interfaces.IsParent(alloc.Job) { // it has no tasks
		return fmt.Sprintf("%s %s: %s, allocation %s", alloc.Name, status, alloc.ClientDescription, alloc.ID)
	}
	return fmt.Sprintf("%s %s, %d of %d tasks running, allocation %s", alloc.Name, status, running,
		len(alloc.GetTaskGroup().Tasks), alloc.ID)
}

// keepAlive sends a sign of life at least every within, as long as answers returns.
func keepAlive(ctx context.Context, within time.Duration, answers func(), send func(state string) error) {
	tick := time.NewTicker(within / 3) // one that is lost does no harm
	defer tick.Stop()
	for {
		answers()
		_ = send("WATCHDOG=1") // the next one may arrive
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// answers returns when the agent, its runner and its sockets have answered: a lock that is never released, or a
// processor that is never free, holds it up.
func (a *Agent) answers() {
	a.present()
	if w := a.working(); w != nil {
		w.runner.Terminal()
		w.runner.Alloc()
		w.sockets.stats()
	}
}
