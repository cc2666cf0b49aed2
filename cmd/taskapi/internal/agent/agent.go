// Package agent runs one allocation and serves its API: it joins the runner to the authenticated sockets of the tasks
// and of the operator, from the start of the process to its end. It reads no job file, finds no allocation and parses
// no flag: the commands do that.
package agent

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/claim"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/consul"
	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec/jobdiff"
	"taskapi/auth"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/handlers"
	"taskapi/identity"
	"taskapi/identity/revocation"
	"taskapi/socket"
)

// InvalidError says that no agent can run with a setting, with a file that a setting names, or with the allocation.
// Nothing was started.
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

// Lock is the lock of an allocation's directory, with its saved state.
type Lock interface {
	// Saved returns the state that an earlier agent has saved; nil for a new allocation.
	Saved() *interfaces.Saved
	// Previous returns the state that Recreate has replaced; nil for none.
	Previous() *interfaces.Saved
	// Life returns the ID of the allocation's present life.
	Life() string
	// Unused reports whether no process of the allocation exists.
	Unused() bool
	// State returns where a runner saves its state; nil when nothing can be written.
	State() interfaces.State
	// TryRecreate returns the error that Recreate would return now.
	TryRecreate() error
	// Recreate replaces the saved state of the ended allocation by that of the next one, which has the same ID.
	// Tasks that were stopped stay so, unless it is fresh.
	Recreate(next *api.Allocation, fresh bool) error
	// FinishReplacement saves that no other allocation follows the ended one.
	FinishReplacement() error
}

// Events prints what happens to the allocation.
type Events interface {
	// TaskEvent prints an event of a task.
	TaskEvent(task string, e *api.TaskEvent)
	// AllocEvent prints an event of the allocation; pairs are keys and values of its details.
	AllocEvent(kind, message string, pairs ...string)
	// Announce prints which allocation begins or is resumed, and where its files are.
	Announce(kind string, alloc *api.Allocation)
	// Ended prints the end of the allocation. why is empty when it ended well.
	Ended(alloc *api.Allocation, why string)
	// Fit makes the column of names as wide as the names of the allocation's tasks.
	Fit(alloc *api.Allocation)
	// Flush waits a bounded time for a reader to take the last lines.
	Flush()
}

// Config holds the parts of an agent. The fields after Resume are optional.
type Config struct {
	Settings Settings
	Factory  interfaces.Factory // makes the runner of the allocation
	Dir      datadir.Dir
	ID       string // of the allocation
	Lock     Lock
	Keyring  func() (*identity.Keyring, error) // opens the ring that signs identities
	// Revocations opens the list of revoked tokens. No token of the agent lives longer than longest. Nil for no list.
	Revocations   func(longest time.Duration) (*revocation.List, error)
	Cluster       cluster.Store // what allocations share; its first use opens it, and the caller closes it
	Clustered     bool          // other machines use Cluster, too
	Claim         *claim.Claim  // on the name of an allocation that begins; nil for one that no other machine may run
	ConsulSecrets consul.Secrets
	Events        Events
	Logger        *slog.Logger
	Version       string // of the program
	RuntimeDir    string // $XDG_RUNTIME_DIR
	Resume        string // the command that resumes the allocation, for people to read

	TuneGC bool // set the garbage collector to what an agent needs
	Shared bool // other agents run in this process: its memory, key ring and revocations are not this one's business
	// Services are the changes of the services in the allocation's namespace, which other agents of this process read,
	// too; nil for the agent to follow the changes itself.
	Services *registry.Feed
	NoAPI    bool // the tasks get no API, because they are only to end

	Stop    *interfaces.StopRequest // stop the allocation so, as soon as it runs
	Kill    bool                    // kill it as soon as it runs
	Next    *api.Allocation         // stop the allocation, and run this one in its place
	Fresh   bool                    // Next starts all tasks
	Changes []jobdiff.Change        // of the job since the allocation last ran

	Tied       bool                   // see interfaces.Config
	Foreground *interfaces.Foreground // a task with this program's standard files; nil for none
	Refusals   *auth.Refusals         // remembers what the tasks are refused; nil for none
	Faults     string                 // file of requests that fail, for tests of clients; empty for none

	Submission *api.JobSubmission // the text of the job, or of Next's if there is one

	Manager ServiceManager // hears of the allocation

	Signals chan os.Signal // gets the process's signals, and has the earlier ones; nil to leave signals alone
}

// Agent runs one allocation, from the start of its process to the end. When the job is replaced by force, the
// allocation is stopped gracefully and run again, under the same ID, in the same directory and process.
type Agent struct {
	cfg Config

	left  chan struct{} // closed by leave
	leave func()        // lets the process exit as soon as the allocation has ended, even while clients read the end

	versions history          // of the job, over all wirings
	socket   *socket.Handover // the operator's, which one wiring leaves to the next; nil for none

	saving sync.Mutex // held while a runner saves a stop, so that the latest stop is saved last; never taken under mu

	mu    sync.Mutex // guards the fields below; never held while anything is waited for
	state state
	at    *wiring // of the allocation that runs; nil between two
}

// New makes an agent. It does no I/O.
func New(cfg Config) *Agent {
	a := &Agent{cfg: cfg, left: make(chan struct{}),
		state: state{replacement: cfg.Next, fresh: cfg.Fresh, killed: cfg.Kill}}
	if cfg.Next != nil {
		a.state.nextText = cfg.Submission
	} else {
		a.state.text = cfg.Submission
	}
	a.leave = sync.OnceFunc(func() { close(a.left) })
	if cfg.Stop != nil {
		a.state.stopped, a.state.how = true, *cfg.Stop
	}
	return a
}

// Prepare makes the tables that each start needs after it has read and written its first files, in the order in which
// the start needs them. They take 3 ms of a processor, which Prepare uses beside the start. The caller calls wait
// before it returns.
func Prepare() (wait func()) {
	var tables sync.WaitGroup
	tables.Go(func() {
		ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
		handlers.Prepare()
		_, _ = json.Marshal(&api.Allocation{})
	})
	return tables.Wait
}

// Run runs the locked allocation to its end, and then its replacements. It reports whether the last one has ended.
// alloc begins when nothing is saved. Errors: ErrReported when an event has said why.
func (a *Agent) Run(ctx context.Context, alloc *api.Allocation) (bool, error) {
	a.mu.Lock()
	a.state.alloc = alloc
	a.mu.Unlock()
	if a.cfg.Signals != nil {
		defer a.onSignals()()
	}
	if m := a.cfg.Manager; m.Watchdog > 0 {
		watched, release := context.WithCancel(context.Background())
		var background sync.WaitGroup
		defer background.Wait()
		defer release()
		background.Go(func() { keepAlive(watched, m.Watchdog, a.answers, m.Send) })
	}
	var scrapes *scraper
	if !a.cfg.NoAPI {
		var err error
		say := func(url string) { a.cfg.Events.AllocEvent("Metrics", "served at "+url, "url", url) }
		resumed := a.cfg.Lock.Saved() != nil
		if scrapes, err = startScraper(a.cfg.Settings.MetricsListen, resumed, a.cfg.Logger, say); err != nil {
			return false, err
		}
		defer scrapes.close()
	}
	defer a.cfg.Events.Flush()
	sayUpdated(a.cfg.Events, a.cfg.Changes)
	if next := a.cfg.Next; next != nil {
		now := a.cfg.Lock.Saved().Alloc
		a.sayReplacing(jobdiff.Changes(now.Job, next.Job, now.TaskGroup))
	}
	defer func() {
		if a.socket != nil {
			_ = a.socket.Close() // no wiring follows
		}
	}()
	for {
		w, err := newWiring(a, a.present().alloc)
		if err != nil {
			return false, err
		}
		kind := "Starting"
		if a.cfg.Lock.Saved() != nil {
			kind = "Resuming"
		}
		a.cfg.Events.Announce(kind, w.runner.Alloc())
		scrapes.serve(w)
		a.begin(ctx, w)
		err = w.run(ctx, func(err error) error { return a.concluded(err, w) })
		now, effects := a.apply(nil, event{kind: ended, terminal: w.runner.Terminal(), cancelled: ctx.Err() != nil})
		if slices.Contains(effects, recreate) { // the outcome is that of the replacement
			err = nil
		}
		for _, do := range effects {
			if failed := a.conclude(do, now); failed != nil {
				return true, errors.Join(err, failed)
			}
		}
		if now.phase != waiting {
			return now.phase == over, err
		}
	}
}

// conclude performs an effect of the end of an allocation.
func (a *Agent) conclude(do effect, now state) error {
	switch do {
	case finish:
		return a.cfg.Lock.FinishReplacement()
	case recreate:
		if err := a.cfg.Lock.Recreate(now.alloc, now.fresh); err != nil {
			return err
		}
		a.cfg.Events.Fit(now.alloc)
	case sayLeftNext:
		said := fmt.Sprintf("the next version of the job has not begun; %s begins it", a.cfg.Resume)
		a.cfg.Events.AllocEvent("Left", said)
	}
	return nil
}

// apply advances the state by an event, and performs the effects that take no time. It returns the new state and the
// other effects. After begun and ended, at is the wiring that runs; nil for none.
func (a *Agent) apply(at *wiring, e event) (state, []effect) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e.kind == replace {
		e.ending = a.at != nil && a.at.ending()
	}
	var effects, rest []effect
	a.state, effects = a.state.next(e)
	if e.kind == begun || e.kind == ended {
		a.at = at
	}
	for _, do := range effects {
		switch do {
		case killNow:
			a.at.runner.Kill()
		case detachNow:
			a.at.runner.Detach()
		default:
			rest = append(rest, do)
		}
	}
	return a.state, rest
}

// present returns the present state.
func (a *Agent) present() state {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state
}

// begin notes that a wiring runs, and passes earlier requests on to its runner.
func (a *Agent) begin(ctx context.Context, w *wiring) {
	if _, effects := a.apply(w, event{kind: begun}); !slices.Contains(effects, stopRunner) {
		return
	}
	if err := a.stopRunner(ctx); err != nil {
		a.cfg.Logger.Warn(warnStop, "error", err)
	}
}

// warnStop is logged when a stop has begun and could not be saved.
const warnStop = "the stop is not saved: if taskapi is killed before the allocation has ended, stop it again"

// stopRunner passes the latest request to stop on to the runner, and returns once that is saved. Without a request or a
// runner it does nothing.
func (a *Agent) stopRunner(ctx context.Context) error {
	a.saving.Lock()
	defer a.saving.Unlock()
	a.mu.Lock()
	w := a.at
	how, stops := a.state.wanted()
	a.mu.Unlock()
	if w == nil || !stops {
		return nil
	}
	return w.runner.Stop(ctx, how)
}

// stop stops the allocation gracefully, and no replacement follows. It returns once that is saved. On the first request
// to stop it calls first.
func (a *Agent) stop(ctx context.Context, how interfaces.StopRequest, first func()) error {
	if _, effects := a.apply(nil, event{kind: stop, how: how}); slices.Contains(effects, sayStopping) {
		first()
	}
	return a.stopRunner(ctx)
}

// kill ends the allocation immediately.
func (a *Agent) kill() { a.apply(nil, event{kind: kill}) }

// collect removes the ended allocation and lets the process exit. Errors: interfaces.ErrNotTerminal.
func (a *Agent) collect(ctx context.Context) error {
	w := a.working()
	if w == nil {
		return interfaces.ErrNotTerminal
	}
	if err := w.collect(ctx); err != nil {
		return err
	}
	a.cfg.Events.AllocEvent("Removed", "requested over the API")
	a.leave()
	return nil
}

// working returns the wiring that runs; nil between two allocations.
func (a *Agent) working() *wiring {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at
}

// detach ends this process's work while the tasks run on. A replacement that has not begun begins in another process.
func (a *Agent) detach() {
	if _, effects := a.apply(nil, event{kind: detach}); slices.Contains(effects, sayDetaching) {
		a.cfg.Events.AllocEvent("Leaving", "the tasks run on, for another taskapi to resume")
	}
}

// replace stops the allocation gracefully, and next follows. A fresh one starts all tasks. text may be nil.
// Errors, after which the allocation runs on: interfaces.ErrTerminal when it already ends for another reason, and those
// of a disk on which next could not begin.
func (a *Agent) replace(
	ctx context.Context, next *api.Allocation, fresh bool, text *api.JobSubmission, changes []jobdiff.Change,
) error {
	if err := a.cfg.Lock.TryRecreate(); err != nil {
		return err
	}
	if _, does := a.apply(nil, event{kind: replace, by: next, fresh: fresh, text: text}); slices.Contains(does, refuse) {
		return fmt.Errorf("replace the job: %w", interfaces.ErrTerminal)
	}
	err := a.stopRunner(ctx)
	a.sayReplacing(changes)
	return err
}

// concluded says how the allocation ended, and returns the command's error.
func (a *Agent) concluded(err error, w *wiring) error {
	alloc, terminal := w.runner.Alloc(), w.runner.Terminal()
	switch {
	case terminal && w.lost():
		a.cfg.Events.Ended(alloc, claim.ErrLost.Error())
	case err == nil:
		a.cfg.Events.Ended(alloc, "")
		return nil
	case errors.Is(err, interfaces.ErrDetached):
		a.cfg.Events.AllocEvent("Left", fmt.Sprintf("the tasks run on; %s resumes them", a.cfg.Resume))
		return nil
	case !terminal && a.cfg.NoAPI:
		return err // the caller ends the tasks in another way
	case !terminal:
		a.cfg.Events.AllocEvent("Left", "it can't be resumed, and its tasks run on: "+linewriter.OneLine(err.Error()))
	default:
		a.cfg.Events.Ended(alloc, linewriter.OneLine(err.Error()))
	}
	return ErrReported
}

// sayUpdated prints the changes of the job that were made in place.
func sayUpdated(to Events, changes []jobdiff.Change) {
	for _, c := range changes {
		to.AllocEvent("Updated", c.String())
	}
}

// sayReplacing says why the allocation ends.
func (a *Agent) sayReplacing(changes []jobdiff.Change) {
	for _, c := range jobdiff.Destructive(changes) {
		a.cfg.Events.AllocEvent("Replacing", c.String())
	}
	with := "new processes"
	if len(changes) > 0 {
		with = "another version of the job"
	}
	a.cfg.Events.AllocEvent("Replacing", "stopping gracefully, to run again with "+with)
}
