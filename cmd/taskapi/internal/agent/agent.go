// Package agent runs one allocation and serves its API: it joins the runner to the authenticated sockets of the tasks and of the operator,
// from the start of the process to its end. It reads no job file, finds no allocation and parses no flag; commands do.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/identity"
)

// InvalidError is a setting, a file that one names, or an allocation that no agent can run with. Nothing was started.
type InvalidError struct{ Err error }

func (e InvalidError) Error() string { return e.Err.Error() }
func (e InvalidError) Unwrap() error { return e.Err }

// invalid marks err as an InvalidError; nil stays nil.
func invalid(err error) error {
	if err == nil {
		return nil
	}
	return InvalidError{err}
}

// ErrReported: the allocation failed, and an event has said why.
var ErrReported = errors.New("the allocation failed")

// Paths are where an allocation's files are.
type Paths struct {
	Alloc                         string // the allocation's directory
	OperatorSocket, OperatorToken string
	TaskSocket                    func(task string) string
}

// Lock is an allocation's directory while no other process has it.
type Lock interface {
	// Saved returns what an earlier agent has left; nil when the allocation has not begun.
	Saved() *interfaces.Saved
	// Life returns the ID of the allocation's present life.
	Life() string
	// State returns the state as a runner has it; nil when nothing can be written.
	State() interfaces.State
	// TryRecreate returns the error that Recreate would return now.
	TryRecreate() error
	// Recreate replaces the state of an allocation that is over by that of one that is to begin, under the same ID.
	Recreate(next *api.Allocation) error
	// FinishReplacement saves that nothing follows an allocation that is over.
	FinishReplacement() error
}

// Events prints what happens to the allocation.
type Events interface {
	// TaskEvent prints an event of a task.
	TaskEvent(task string, e *api.TaskEvent)
	// AllocEvent prints an event of the allocation; pairs are keys and values of its details.
	AllocEvent(kind, message string, pairs ...string)
	// Announce prints which allocation begins or goes on, and where its files are.
	Announce(kind string, alloc *api.Allocation)
	// Ended prints the end of the allocation. why is empty when it ended well.
	Ended(alloc *api.Allocation, why string)
	// Fit makes room for the names of the allocation's tasks.
	Fit(alloc *api.Allocation)
	// Flush waits a bounded time for a reader to take the last lines.
	Flush()
}

// Config is what an agent is made of. Stop, Next, Changes, RuntimeDir and Signals may be left out.
type Config struct {
	Settings   Settings
	Paths      Paths
	Lock       Lock
	Keyring    func() (*identity.Keyring, error) // opens the ring that signs identities
	Events     Events
	Logger     *slog.Logger
	Version    string // of the program
	RuntimeDir string // $XDG_RUNTIME_DIR
	TuneGC     bool   // set the garbage collector to what an agent needs
	NoAPI      bool   // the tasks have no API: all that is wanted of them is their end
	Resume     string // the command that resumes the allocation, for people to read

	Stop    *interfaces.StopRequest // the allocation is to end so, from the beginning
	Kill    bool                    // and at once
	Next    *api.Allocation         // what is to follow the allocation, which is to end for that
	Changes []jobspec.Change        // what has changed of the job since the allocation was last run

	Signals chan os.Signal // those that have come before Run
}

// Agent is taskapi at work on one allocation, from its start to its end. When the job is replaced by force, the allocation ends
// gracefully and runs again, under the same ID, in the same directory and process.
type Agent struct {
	cfg      Config
	settings Settings
	lock     Lock
	paths    Paths
	events   Events
	logger   *slog.Logger
	signals  chan os.Signal // what has come, and is to be acted on

	asking sync.Mutex // held while an end is asked for and written down, so that what is asked for last stands; never within mu

	mu      sync.Mutex             // guards the fields below
	side    *wiring                // at work; nil while none is
	next    *api.Allocation        // what follows; nil for nothing
	stopped bool                   // somebody has asked for the end: nothing follows
	how     interfaces.StopRequest // what was asked for then
	killed  bool                   // somebody wants no delay
	leaving bool                   // somebody wants the tasks to be left to another taskapi
}

// New makes an agent. It touches nothing of the machine.
func New(cfg Config) *Agent {
	a := &Agent{
		cfg: cfg, settings: cfg.Settings, lock: cfg.Lock, paths: cfg.Paths, events: cfg.Events, logger: cfg.Logger, signals: cfg.Signals,
		next: cfg.Next, stopped: cfg.Stop != nil, killed: cfg.Kill,
	}
	if cfg.Stop != nil {
		a.how = *cfg.Stop
	}
	if a.signals == nil {
		a.signals = make(chan os.Signal, 2)
	}
	return a
}

// Run runs the allocation that is locked to its end, and those that follow it, and reports whether the last is over. alloc is what begins
// when nothing was left. Signals are heard meanwhile. Errors: ErrReported when an event has said why.
func (a *Agent) Run(ctx context.Context, alloc *api.Allocation) (over bool, err error) {
	release := a.onSignals()
	defer release()
	defer a.events.Flush() // while a reader that has gone away is no reason to die of SIGPIPE
	a.updated(a.cfg.Changes)
	if next := a.successor(); next != nil {
		now := a.lock.Saved().Alloc
		a.replacing(jobspec.Changes(now.Job, next.Job, now.TaskGroup))
	}
	for {
		over, err = a.workOnce(ctx, alloc)
		next, stopped, leaving := a.following()
		switch {
		case !over:
			return false, err
		case stopped || ctx.Err() != nil:
			return true, errors.Join(err, a.lock.FinishReplacement())
		case next == nil:
			return true, err
		}
		if err := a.lock.Recreate(next); err != nil {
			return true, err
		}
		a.events.Fit(next)
		if leaving { // nothing of it runs yet, and it is written down that it follows
			a.events.AllocEvent("Left", fmt.Sprintf("the next version of the job is to begin; %s has it do so", a.cfg.Resume))
			return false, nil
		}
		alloc = next
	}
}

// workOnce runs an allocation, and reports whether that is over.
func (a *Agent) workOnce(ctx context.Context, alloc *api.Allocation) (over bool, err error) {
	side, err := newWiring(a, alloc)
	if err != nil {
		return false, err
	}
	a.announce(side)
	a.begin(ctx, side)
	err = side.run(ctx)
	return side.runner.Terminal(), a.concluded(err, side)
}

// announce says that the allocation begins, or goes on.
func (a *Agent) announce(side *wiring) {
	kind := "Starting"
	if a.lock.Saved() != nil {
		kind = "Resuming"
	}
	a.events.Announce(kind, side.runner.Alloc())
}

// begin makes the sidecar the one at work. What has been asked for before is asked of it.
func (a *Agent) begin(ctx context.Context, side *wiring) {
	a.asking.Lock()
	defer a.asking.Unlock()
	a.mu.Lock()
	a.side = side
	stop, leave, kill := a.stopped || a.next != nil, a.leaving, a.killed
	how := interfaces.StopRequest{Replaced: true}
	if a.stopped {
		how = a.how
	}
	a.mu.Unlock()
	if leave {
		side.runner.Detach()
	}
	if kill {
		side.runner.Kill()
	}
	if !stop {
		return
	}
	if err := side.runner.Stop(ctx, how); err != nil {
		a.logger.Warn(warnStop, "error", err)
	}
}

// warnStop is for a stop that is under way and not on the disk.
const warnStop = "the stop is not written down: if taskapi is killed before it is over, stop it once more"

// following ends the work of a sidecar and gives what follows, whether somebody has asked for the end, after which nothing does, and
// whether what follows is another taskapi'a.
func (a *Agent) following() (next *api.Allocation, stopped, leaving bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	next = a.next
	a.side, a.next = nil, nil
	return next, a.stopped, a.leaving
}

// concluded says how the allocation ended, and gives the command's error.
func (a *Agent) concluded(err error, side *wiring) error {
	alloc := side.runner.Alloc()
	switch {
	case err == nil:
		a.events.Ended(alloc, "")
		return nil
	case !side.runner.Terminal() && !errors.Is(err, interfaces.ErrDetached) && a.cfg.NoAPI:
		return err // they are ended in another way
	case !side.runner.Terminal() && !errors.Is(err, interfaces.ErrDetached):
		a.events.AllocEvent("Left", "it can't be taken over, and its tasks run on: "+linewriter.OneLine(err.Error()))
		return ErrReported // the event has said why
	case errors.Is(err, interfaces.ErrDetached):
		a.events.AllocEvent("Left", fmt.Sprintf("the tasks run on; %s takes them over", a.cfg.Resume))
		return nil
	}
	a.events.Ended(alloc, linewriter.OneLine(err.Error()))
	return ErrReported // the event has said why
}

// stop has the allocation end in order, and nothing follow it. It returns once that is written down. first is called when nobody has
// asked before.
func (a *Agent) stop(ctx context.Context, how interfaces.StopRequest, first func()) error {
	a.asking.Lock()
	defer a.asking.Unlock()
	a.mu.Lock()
	was, side := a.stopped, a.side
	a.stopped, a.how, a.next = true, how, nil
	a.mu.Unlock()
	if !was {
		first()
	}
	if side == nil {
		return nil
	}
	return side.runner.Stop(ctx, how)
}

// kill ends the allocation at once.
func (a *Agent) kill() {
	a.mu.Lock()
	side := a.side
	a.killed = true
	a.mu.Unlock()
	if side != nil {
		side.runner.Kill()
	}
}

// leave ends this process's work and has the tasks run on. What is to follow the allocation, if it has ended, does so in another process.
func (a *Agent) leave() {
	a.mu.Lock()
	was, side := a.leaving, a.side
	a.leaving = true
	a.mu.Unlock()
	if !was {
		a.events.AllocEvent("Leaving", "the tasks run on, for another taskapi to take over")
	}
	if side != nil {
		side.runner.Detach()
	}
}

// isLeaving reports that another taskapi is to take over.
func (a *Agent) isLeaving() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leaving
}

// successor is the allocation that follows this one, nil for none.
func (a *Agent) successor() *api.Allocation {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.next
}

// updated says what the allocation goes on with.
func (a *Agent) updated(changes []jobspec.Change) {
	for _, c := range changes {
		a.events.AllocEvent("Updated", c.String())
	}
}

// replace has the allocation end in order, and another one follow it. Errors: interfaces.ErrTerminal when it ends for another reason, and
// those of a disk on which nothing could begin: then nothing ends.
func (a *Agent) replace(ctx context.Context, next *api.Allocation, changes []jobspec.Change) error {
	if err := a.lock.TryRecreate(); err != nil {
		return err
	}
	a.asking.Lock()
	defer a.asking.Unlock()
	a.mu.Lock()
	side := a.side
	if side == nil || a.stopped || a.leaving || a.next == nil && side.ending() {
		a.mu.Unlock()
		return fmt.Errorf("replace the job: %w", interfaces.ErrTerminal)
	}
	a.next = next
	a.mu.Unlock()
	err := side.runner.Stop(ctx, interfaces.StopRequest{Replaced: true})
	a.replacing(changes)
	return err
}

// replacing says why the allocation ends.
func (a *Agent) replacing(changes []jobspec.Change) {
	for _, c := range jobspec.Destructive(changes) {
		a.events.AllocEvent("Replacing", c.String())
	}
	a.events.AllocEvent("Replacing", "stopping in order, to run anew with another version of the job")
}
