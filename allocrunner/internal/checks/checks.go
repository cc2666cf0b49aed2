// Package checks runs the HTTP and TCP checks of an allocation's services with provider "nomad" and holds the latest result of
// each. Every check runs on its own schedule, at once and then each interval, one run at a time; a run that outlasts its interval
// costs the runs that fall into it. Connections are closed after each run. It does not judge results: restarting a task because
// of them is for others to do.
package checks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"
)

// ProviderNomad is the provider of the services whose checks run here. Others' are their provider's business.
const ProviderNomad = "nomad"

// ErrInvalid: a check can't be run as it is written. It wraps which check and why.
var ErrInvalid = errors.New("invalid check")

// Config is what a Runner is made of. Alloc, with its job and group, and Logger are required.
type Config struct {
	Alloc *api.Allocation

	// Replace interpolates text of a service or check with the environment of a task, or of the allocation for the empty name;
	// nil leaves text as it is.
	Replace func(task, s string) string

	// Ports are what port labels stand for: the group's, and a task's own when the task is not empty. nil has none.
	Ports func(task string) []api.PortMapping

	// HostIP is the address for a port that is given as a number; empty is 127.0.0.1.
	HostIP string

	// Version goes into the User-Agent, "taskapi/VERSION".
	Version string

	// After is the version that the results start from: that of the Runner before this one, 0 for the first.
	After uint64

	Logger *slog.Logger

	// OnChange is called after every change of the results, from the goroutine that made it. It must not block and not call
	// Stop; nil for none.
	OnChange func()

	// DialContext opens connections; nil is net.Dialer's.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// Runner runs the checks of one allocation. Its methods are safe for concurrent use.
type Runner struct {
	checks   []check
	logger   *slog.Logger
	onChange func()

	results atomic.Pointer[snapshot]

	mu      sync.Mutex         // guards writing results, and:
	cancel  context.CancelFunc // ends Run; nil before it
	stopped bool
}

// snapshot is a set of results that never changes once it is published.
type snapshot struct {
	statuses api.AllocCheckStatuses // nil for none
	version  uint64
}

// New prepares the checks. It does no I/O. Errors: ErrInvalid, with every check that can't be run.
func New(cfg Config) (*Runner, error) {
	cfg.HostIP = cmp.Or(cfg.HostIP, defaultHostIP)
	if cfg.DialContext == nil {
		cfg.DialContext = new(net.Dialer).DialContext
	}
	list, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	r := &Runner{checks: list, logger: cfg.Logger, onChange: cfg.OnChange}
	if r.onChange == nil {
		r.onChange = func() {}
	}
	r.results.Store(&snapshot{version: cfg.After})
	return r, nil
}

// defaultHostIP is where ports are, unless the operator says otherwise.
const defaultHostIP = "127.0.0.1"

// Len is the number of checks.
func (r *Runner) Len() int { return len(r.checks) }

// Results is the latest result of every check by its ID, and a version that differs whenever the results do. The map is shared and
// must not be changed; it is nil when there are no checks, before Run, and from Stop on.
func (r *Runner) Results() (api.AllocCheckStatuses, uint64) {
	s := r.results.Load()
	return s.statuses, s.version
}

// Run runs the checks until ctx ends or Stop is called. It returns when no check is under way, with the results cleared. It is
// called once.
func (r *Runner) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !r.begin(cancel) {
		return
	}
	r.onChange()
	defer r.Stop()
	var running sync.WaitGroup
	for i := range r.checks {
		running.Go(func() { r.repeat(ctx, &r.checks[i]) })
	}
	<-ctx.Done()
	running.Wait()
}

// begin publishes that every check waits for its first run. It is false when Stop came first.
func (r *Runner) begin(cancel context.CancelFunc) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return false
	}
	r.cancel = cancel
	if len(r.checks) == 0 {
		return true
	}
	statuses := make(api.AllocCheckStatuses, len(r.checks))
	for _, c := range r.checks {
		status := c.about
		status.Status, status.Output, status.Timestamp = pending, "nomad: waiting to run", time.Now().Unix()
		statuses[status.ID] = status
	}
	r.publishLocked(statuses)
	return true
}

// Stop clears the results at once, for good, and makes Run return; also a Run that has not begun. It does not wait, and is
// harmless again.
func (r *Runner) Stop() {
	if r.clear() {
		r.onChange()
	}
}

// clear reports whether there was anything to clear.
func (r *Runner) clear() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	if r.cancel != nil {
		r.cancel()
	}
	if r.results.Load().statuses == nil {
		return false
	}
	r.publishLocked(nil)
	return true
}

// repeat runs one check: at once, then at whole intervals from the first run, without catching up on those it missed.
func (r *Runner) repeat(ctx context.Context, c *check) {
	first := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		r.record(ctx, c, c.run(ctx))
		elapsed := time.Since(first)
		timer.Reset(c.interval - elapsed%c.interval)
	}
}

// record publishes a result and logs it when it is another than before.
func (r *Runner) record(ctx context.Context, c *check, o outcome) {
	status := c.about
	status.Status, status.StatusCode, status.Output, status.Timestamp = o.status, o.code, o.output, time.Now().Unix()
	was, ok := r.replace(ctx, status)
	if !ok {
		return
	}
	r.onChange()
	if was != status.Status {
		r.logger.Info("check changed", "service", status.Service, "check", status.Check, "from", was, "to", status.Status)
	}
}

// replace publishes the results with one replaced, and gives the status before. It does nothing once Run is to end: a run that
// was cut off says nothing about the service.
func (r *Runner) replace(ctx context.Context, status api.AllocCheckStatus) (was string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped || ctx.Err() != nil {
		return "", false
	}
	statuses := maps.Clone(r.results.Load().statuses)
	was = statuses[status.ID].Status
	statuses[status.ID] = status
	r.publishLocked(statuses)
	return was, true
}

func (r *Runner) publishLocked(statuses api.AllocCheckStatuses) {
	r.results.Store(&snapshot{statuses, r.results.Load().version + 1})
}

// prepare resolves every check of the group's and the tasks' services.
func prepare(cfg Config) ([]check, error) {
	group := cfg.Alloc.GetTaskGroup()
	if group == nil {
		return nil, fmt.Errorf("%w: the job has no group %q", ErrInvalid, cfg.Alloc.TaskGroup)
	}
	var list []check
	var errs []error
	add := func(task string, services []*api.Service) {
		for _, s := range services {
			more, err := fromService(cfg, task, s)
			list, errs = append(list, more...), append(errs, err)
		}
	}
	add("", group.Services)
	for _, t := range group.Tasks {
		add(t.Name, t.Services)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	distinguish(list)
	return list, nil
}
