// Package checks runs the HTTP, TCP and script checks of an allocation's services, or reads the results of their
// provider, and holds the latest result of each check. A check is registered when its task begins, and deregistered
// when the task ends. Each check has its own schedule: it runs soon, then each interval, one run at a time; intervals
// that pass during a long run are skipped. Connections are closed after each run. The package reports when a check
// requires a restart, once for each start; it restarts nothing.
package checks

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/services"
	"taskapi/internal/wake"
)

// ErrInvalid means that a check can't be run. The error that wraps it names the check and the reason.
var ErrInvalid = errors.New("invalid check")

// Config configures a Runner. Alloc, with its job and group, Provider and Logger are required, and OnChange, Restart
// and Up by a Runner that is run.
type Config struct {
	Alloc *api.Allocation

	services.Resolver

	// Provider returns a provider by its name. Services of unknown providers have no checks. An
	// interfaces.CheckingProvider checks its services itself. Nomad's own provider is always known.
	Provider func(name string) (interfaces.ServiceProvider, bool)

	// Version goes into the User-Agent, "taskapi/VERSION".
	Version string

	// Saved are the results of an earlier process. A check with the same ID continues from its result: it is shown
	// until the first run of the check's first registration, and the thresholds begin there. May be nil.
	Saved api.AllocCheckStatuses

	Logger *slog.Logger

	// OnChange is called when a check is added or removed, or its status changes, from the goroutine that caused it. It
	// must not block.
	OnChange func()

	// Exec runs the command of a script check. With nil, script checks are errors.
	Exec ExecFunc

	// Restart is called when a check has been unhealthy for too long, from the check's goroutine, which waits for it,
	// as Run does. It may call Begin and End. task is the check's task; it is empty for a check of the group's services
	// that names none. Restart is called once for all checks of a task until the task's next start, as Up reports it,
	// or the next Begin.
	Restart func(task, reason string)

	// Up returns the latest start of the tasks that Restart would restart for a task. It is zero while these tasks do
	// not run or are being stopped; failures don't count then.
	Up func(task string) time.Time

	// DialContext opens connections; nil is net.Dialer's.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// ExecFunc runs a command with a task's environment, directory and user. It kills the command when ctx ends, and
// returns soon after that with the output of the command. The error is about a command that could not be run, or was
// killed.
type ExecFunc func(ctx context.Context, task string, command []string) (ExecResult, error)

// ExecResult is how a command ended.
type ExecResult struct {
	Output []byte // of stdout and stderr; the first 3 KiB are enough
	Code   int    // exit code
}

// Runner runs the checks of one allocation. Its methods are safe for concurrent use.
type Runner struct {
	cfg  Config
	wake wake.Signal // there may be registrations to be started

	mu        sync.Mutex // guards what follows
	list      []*registration
	begun     map[string]bool    // tasks between Begin and End
	cancel    context.CancelFunc // ends Run; nil before it
	stopped   bool
	suspended bool // the group's services are not registered
	version   uint64
	statuses  api.AllocCheckStatuses // as last read; nil when the list has changed since
}

// New returns a Runner, which Run starts. It does no I/O. Errors: ErrInvalid, which names every check that can't be
// run.
func New(cfg Config) (*Runner, error) {
	if cfg.DialContext == nil {
		cfg.DialContext = new(net.Dialer).DialContext
	}
	list, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	r := &Runner{cfg: cfg, wake: wake.New(), begun: map[string]bool{}}
	for _, c := range list {
		reg := register(c, pending, false) // its task has not begun
		if s, ok := cfg.Saved[c.about.ID]; ok {
			reg.show(s)
		}
		r.list = append(r.list, reg)
	}
	// They may be large, and are not needed again.
	r.cfg.Alloc, r.cfg.Resolver, r.cfg.Saved = nil, services.Resolver{}, nil
	return r, nil
}

// Results returns the latest result of every check by its ID, and a version that changes with the results. The map is
// shared and must not be changed. It is nil without checks, before Run, from Suspend to the group's next Begin, and
// after Stop. Checks whose task has not begun are pending.
func (r *Runner) Results() (api.AllocCheckStatuses, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.statuses == nil && r.visibleLocked() && len(r.list) > 0 {
		r.statuses = make(api.AllocCheckStatuses, len(r.list))
		for _, reg := range r.list {
			r.statuses[reg.status.ID] = reg.status
		}
	}
	return r.statuses, r.version
}

func (r *Runner) visibleLocked() bool { return r.cancel != nil && !r.stopped && !r.suspended }

// changedLocked records that the results have changed. It reports whether they are visible.
func (r *Runner) changedLocked() bool {
	r.statuses = nil
	if !r.visibleLocked() {
		return false
	}
	r.version++
	return true
}

// edit changes the Runner under its mutex. It calls OnChange if changesLocked reports that visible results have
// changed.
func (r *Runner) edit(changesLocked func() bool) {
	r.mu.Lock()
	changed := changesLocked()
	r.mu.Unlock()
	if changed {
		r.cfg.OnChange()
	}
}

// Stop clears the results for good, and makes Run return, now or when it is called. It does not wait, and may be called
// again.
func (r *Runner) Stop() {
	r.edit(func() bool {
		changed := len(r.list) > 0 && r.changedLocked()
		r.stopped = true
		if r.cancel != nil {
			r.cancel()
		}
		return changed
	})
}
