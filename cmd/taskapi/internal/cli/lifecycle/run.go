// Package lifecycle has the commands that begin, change and end allocations: run, attach, update, takeover, stop
// and gc.
package lifecycle

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"taskapi/allocrunner"
	"taskapi/allocrunner/cluster/claim"
	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec/review"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/cmd/taskapi/internal/settings"
	"taskapi/identity"
)

type runOptions struct {
	start.Options
	takeOver bool // it is taskapi takeover: the saved job runs on
}

func Run(w base.Environment) *cobra.Command {
	var opts runOptions
	cmd := &cobra.Command{
		Use:        "run [flags] JOBFILE",
		SuggestFor: []string{"up", "create", "apply", "deploy", "launch", "dispatch", "scale", "wait", "init"},
		Short:      "Run an allocation, in the foreground or with --detach",
		Long: `Runs one allocation of the job file, or with --all every one, and prints its events.

The allocation is JOB.GROUP[0], or with --index N JOB.GROUP[N]. In a namespace of a data directory, each name runs
once. What run does depends on the allocation of that name:

  there is none        a new allocation starts
  it has ended         a new one starts; 'taskapi gc' removes the old one
  a taskapi runs it    run is refused; 'taskapi update' changes its job
  it was left running  run resumes it

An allocation is left running when its taskapi is killed or gets SIGUSR1. The flags of its last run still hold, unless
you give others. Give the variables of the job file again. If the job file has another version of the job, changes
that need no new process are applied, and others are refused. --replace stops an allocation that runs, or was left
running, and runs it again with new processes under the same ID.

On a terminal, run also prints the tasks' output, with | before standard output and ! before standard error.
Elsewhere, the last lines of a task's standard error stand under the event of its failure.

A parameterized job waits for dispatches, by 'nomad job dispatch' or PUT /v1/job/JOB/dispatch, and a periodic job obeys
its schedule. Each dispatch and each time starts a child, JOB/dispatch-... or JOB/periodic-..., which has an allocation
and a taskapi in the background of its own, and outlives its parent. With --payload or --meta, run dispatches a
parameterized job itself: it runs that child instead.

SIGINT (Ctrl-C) and SIGTERM stop the allocation gracefully (kill_signal, kill_timeout, shutdown_delay). A second one
kills every task immediately. SIGUSR1 ends taskapi and leaves the tasks running.

With --detach, run returns when the main tasks have started, or wait for what a template reads, and with --wait when the
allocation is in that state. It is healthy when its tasks have run and its checks have succeeded for min_healthy_time of
the group's update block, by default ten seconds. run prints the allocation's ID and, if it waits for longer than two
seconds, what it waits for. If a task fails to start, or the allocation can't reach the state any more, run says why and
exits with 1. The allocation then goes on under its restart policy. Ctrl-C ends the waiting, not the allocation.

--all runs each group of the job count times, each allocation with a taskapi of its own in the background, as --detach
does. Before anything starts, it checks the whole job file and the static ports. If one of them fails later, the others
run on, and run names it. Allocations that run already are left as they are, so that the same command completes what was
cut short. Without --detach, run prints the events of all until the last one has ended, each line with GROUP[N]/TASK;
Ctrl-C stops all, and SIGUSR1 leaves them running. 'taskapi stop JOB' stops them, 'taskapi update --all' updates them.

With --exit-code-from TASK, run stops the allocation when that task has ended and its restart policy does not start it
again (in a job of type batch, exit code 0 is always such an end), and exits as the task did.

--json prints an object a line, with time, alloc, task, type, message and details. The types are those of Nomad's
events. The allocation itself has Starting, Resuming, Attached, Updated, Replacing, Stopping, Killing, Lost, Leaving,
Left, Ended and Lines Lost, and that of a job with children also Waiting, Launched, Launch Failed, Skipped, Resumed and
Children. With --logs, lines of the type Output name their stream in details. A slow reader delays nothing: some hundred
lines wait for it, further ones are lost, and a line says how many.

Exit code: 0 when the allocation completes, is stopped or left running, 1 when it fails, 2 when the job file or a flag
is wrong. With --exit-code-from, once the task has ended: its exit code, 128 and the number of the signal that ended it,
or 1 if it never started.`,
		Example: `  taskapi run examples/hello.nomad.hcl
  taskapi run -d --wait --isolate-users examples/hello.nomad.hcl
  taskapi run -d --index 1 examples/hello.nomad.hcl
  taskapi run --all -d --wait job.nomad.hcl
  taskapi run -d --replace --var version=2 job.nomad.hcl`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 && cmd.Flags().Changed(start.IsolateFlag) {
				if isRange, _ := regexp.MatchString(`^[0-9]+-[0-9]+$`, args[0]); isRange {
					return base.Usagef("--%s takes its range after an equals sign: --%s=%s", start.IsolateFlag,
						start.IsolateFlag, args[0])
				}
			}
			return cmp.Or(opts.Until.CheckArgs(cmd.Flags(), args), base.CheckArgs(cmd, args))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			err := opts.Until.CheckFlags(cmd.Flags())
			if opts.Index < 0 || opts.Index > maxIndex {
				err = cmp.Or(err, base.Usagef("--index %d is no number from 0 to %d", opts.Index, maxIndex))
			}
			for _, one := range []string{"group", "index", "alloc-id", "payload", "meta"} {
				if opts.All && cmd.Flags().Changed(one) {
					err = cmp.Or(err, base.Usagef("--all runs every allocation of the job: leave out --%s, or --all", one))
				}
			}
			if opts.Standby && (opts.Detach || opts.All || opts.Until.What != "") {
				err = cmp.Or(err, base.Usagef("--standby waits in the foreground: leave out --detach, --wait and --all"))
			}
			switch {
			case !cmd.Flags().Changed("exit-code-from"):
			case opts.ExitFrom.Task == "":
				err = cmp.Or(err, base.Usagef("--exit-code-from is empty: give the name of a task, or leave it out"))
			case opts.Detach, opts.All, opts.Until.What != "":
				err = cmp.Or(err, base.Usagef("--exit-code-from TASK waits for the task in the foreground: leave out --detach, "+
					"--wait and --all"))
			}
			if args[0] == "-" && opts.Payload == "-" {
				err = cmp.Or(err, base.Usagef("--payload - and the job file - are both standard input: give one of them as a file"))
			}
			if err != nil {
				return err
			}
			opts.Detach = opts.Detach || opts.Until.What != ""
			return opts.inProcess(cmd, w, func(waiting context.Context, r *request) error {
				if args[0] == "-" {
					r.environment.Stdin = start.Interruptible{Ctx: waiting, From: w.Stdin}
				}
				if opts.All {
					return r.runTogether(cmd, waiting, args[0])
				}
				if err := r.read(args[0], cmd.Flags()); err != nil {
					return cmp.Or(context.Cause(waiting), err)
				}
				if err := r.claimName(waiting, cmd.Flags()); err != nil {
					return cmp.Or(context.Cause(waiting), err)
				}
				if r.name != nil {
					defer r.name.Close() // a second Close has nothing to close
				}
				r.warn()
				if err := r.putVarItems(waiting); err != nil {
					return err
				}
				if opts.Standby && !r.layout.HasClaim(r.alloc.ID) {
					held, store, err := start.StandBy(waiting, r.layout, r.alloc, func(what string) { w.Warnf("%s", what) })
					if errors.Is(err, claim.ErrComplete) {
						w.Warnf("%v", err)
						return nil
					}
					if err != nil {
						return cmp.Or(context.Cause(waiting), err)
					}
					defer store.Close()
					defer start.ReleaseUnbegun(r.layout, r.alloc.ID, held)
					r.claim = held
				}
				if opts.Detach {
					r.flags = givenFlags(cmd, ofParent...)
					return r.detach(waiting)
				}
				return r.run(cmd.Context(), waiting)
			})
		},
	}
	opts.Add(cmd)
	return cmd
}

// inProcess calls do with an unfilled request. Its standard error is a log that does not wait for its reader. The first
// signal ends the context, unless an agent handles signals already.
func (o *runOptions) inProcess(
	cmd *cobra.Command, w base.Environment, do func(waiting context.Context, r *request) error,
) error {
	if w.Signals == nil {
		w.Signals = start.CatchSignals()
	}
	defer signal.Stop(w.Signals)
	defer agent.Prepare()()
	starting, waiting := start.Watch(cmd.Context(), w.Signals)
	defer starting.End()
	if o.Detached {
		w.Stdout, w.Stderr = boundedLogs(w)
	}
	log := base.QueuedLog(w)
	defer base.FlushAll(log)
	w.Stderr = log
	return do(waiting, &request{options: *o, environment: w, log: log, starting: starting})
}

// request is a call of taskapi run that has been checked, before anything is changed.
type request struct {
	options     runOptions
	usersBefore string          // the setting isolate_users of the allocation's last run
	record      settings.Record // of this run
	jobFile     string
	layout      base.Layout
	drawn       bool                 // the allocation's ID was drawn at random just now
	claim       *claim.Claim         // on the allocation's name; nil for one that no other machine may run
	dispatch    *interfaces.Dispatch // what the flags dispatch; nil for nothing
	name        *os.File             // the lock on the allocation's name; nil for none
	before      *api.Allocation      // as it was last saved; nil if it is new
	jobLock     *os.File             // of the first member's; see lockJob
	lost        *api.Allocation      // the same, if its tasks did not run when it was started; otherwise nil
	alloc       *api.Allocation      // as it would begin
	loaded      *start.LoadedJob     // of a job file that has been read and reviewed; nil for one that has not
	like        *settings.Record     // of an allocation whose settings a new one gets; nil for none
	flags       []string             // of the process in the background
	text        []byte               // of a job file on standard input, for several processes
	source      start.Source
	hide        func(error) error // removes the source's texts from files
	submission  *api.JobSubmission
	variables   []*api.Variable // variables to be written first
	environment base.Environment
	log         *linewriter.Writer // the environment's standard error
	starting    *start.Startup
}

func (r *request) target() base.Target {
	return base.Target{Layout: r.layout, ID: r.alloc.ID, Alloc: r.alloc}
}

// read fills the request in.
func (r *request) read(jobFile string, flags *pflag.FlagSet) (err error) {
	o := &r.options
	r.jobFile = jobFile
	if r.layout, err = base.NewLayout(o.DataDir, r.environment); err != nil {
		return err
	}
	r.drawn = o.AllocID == ""
	id, err := allocationID(o.AllocID)
	if err != nil {
		return err
	}
	if err := r.readSettings(id, flags); err != nil {
		return err
	}
	if jobFile == "-" { // it may be needed again
		text, err := io.ReadAll(r.environment.Stdin)
		if err != nil {
			return fmt.Errorf("job file on standard input: %w", err)
		}
		r.environment.Stdin = bytes.NewReader(text)
		defer func() { r.environment.Stdin = bytes.NewReader(text) }()
	}
	if dump, err := state.Inspect(r.layout.State(id)); err == nil && dump.Saved.Alloc != nil {
		r.before = dump.Saved.Alloc
		o.Group = cmp.Or(o.Group, r.before.TaskGroup)
	}
	loaded := r.loaded
	if loaded == nil {
		loaded, err = o.Load(jobFile, o.Settings, r.environment)
		if errors.Is(err, review.ErrGroupNotNamed) {
			err = base.Usagef("%w, or run all of them with --all", err)
		}
		if err != nil {
			return err
		}
	}
	if loaded.Job, r.dispatch, err = o.Dispatched(loaded.Job, r.dispatch, flags, r.environment); err != nil {
		return loaded.Hide(err)
	}
	r.alloc, r.submission = agent.NewAllocation(id, loaded.Job, loaded.Group), loaded.Submission
	r.source = loaded.Source
	r.alloc.Name = agent.AllocName(r.alloc.JobID, r.alloc.TaskGroup, o.Index)
	if r.before != nil && allocrunner.SameJob(r.before, r.alloc) == nil && r.before.Name != r.alloc.Name {
		if flags.Changed("index") {
			return base.Usagef("allocation %s is %s, not %s: leave out --index", id, r.before.Name, r.alloc.Name)
		}
		r.alloc.Name = r.before.Name
	}
	r.hide = loaded.Hide
	return nil
}

// check refuses flags that don't fit the allocation.
func (r *request) check() (err error) {
	o := &r.options
	if err := errors.Join(o.CheckUsers(r.alloc.GetTaskGroup()), o.Until.Check(r.alloc),
		o.ExitFrom.Check(r.alloc)); err != nil {
		return base.Usage(r.hide(err))
	}
	if !o.Detached {
		r.variables, err = readVarItems(o.PutVars, r.alloc.Namespace, r.environment)
	}
	return err
}

// readSettings sets the settings to those that are given now, those that the allocation remembers, and the machine's.
func (r *request) readSettings(id string, flags *pflag.FlagSet) error {
	kept, err := r.layout.Record(id)
	if err != nil && !errors.Is(err, fs.ErrPermission) { // then nothing of the allocation can be had, which is said soon
		return err
	}
	if r.like != nil && r.drawn {
		kept = *r.like
	}
	if before, err := kept.Settings(); err == nil {
		r.usersBefore = before.IsolateUsers
	}
	r.record, r.options.Settings, err = r.options.Next(kept, flags, true, r.environment)
	return err
}

// warn prints the review's warnings about the tasks of a new allocation.
func (r *request) warn() {
	if r.before != nil || r.options.Detached { // the process that started this one has printed it
		return
	}
	warnings := slices.DeleteFunc(r.options.CheckTasks(r.alloc, r.layout.Allocs()), func(f review.Finding) bool {
		return f.Severity == review.Refused // which the start reports
	})
	r.source.PrintFindings(r.environment.Stderr, warnings)
}

// maxIndex is more allocations of a group than a machine runs.
const maxIndex = 9999

// nameFD is the descriptor by which a background process inherits the lock on the allocation's name. See argsFD.
const nameFD = argsFD + 1

// claimName takes the lock on the allocation's name, and looks for an allocation that has the name already: run
// continues one that was left running, or that --replace stops. If another taskapi runs it, that is an error.
func (r *request) claimName(ctx context.Context, flags *pflag.FlagSet) error {
	o := &r.options
	if o.Detached && o.Named {
		r.name = os.NewFile(nameFD, "names")
	}
	unfit := r.check()
	if o.AllocID != "" {
		return unfit
	}
	if unfit != nil {
		if _, err := os.Stat(r.layout.Names()); err != nil { // no allocation was left running, and nothing is made
			return unfit
		}
	}
	err := r.layout.MakeDir()
	if err == nil {
		r.name, err = r.layout.LockName(ctx, r.alloc.Namespace, r.alloc.Name, client.BusyTimeout)
	}
	if errors.Is(err, datadir.ErrNameInUse) {
		err = base.Usagef("allocation %s: %w, and has not got on for %v", r.alloc.Name, err, client.BusyTimeout)
	}
	if err != nil {
		return err
	}
	left, err := r.sameName(ctx)
	if left != "" {
		if text, ok := r.environment.Stdin.(*bytes.Reader); ok {
			_, _ = text.Seek(0, io.SeekStart) // it can
		}
		o.AllocID = left
		if err = r.read(r.jobFile, flags); err == nil {
			unfit = r.check()
		}
	}
	if err = cmp.Or(err, unfit); err != nil {
		_ = r.name.Close() // nothing was written
	}
	return err
}

// sameName returns the allocation of the same name that run continues, empty for none.
func (r *request) sameName(ctx context.Context) (left string, err error) {
	if err := r.layout.Explain(r.layout.CheckUnread(r.alloc)); err != nil {
		return "", err
	}
	all, err := r.layout.Running(ctx, r.alloc)
	for _, t := range all {
		if t.Alloc.Name != r.alloc.Name {
			continue
		}
		c := t.Client()
		found := c.Locate(ctx, client.Timeouts{})
		if found.Holder == client.Changing { // it may have ended, and its taskapi not exited yet
			found = c.Locate(ctx, client.Patient)
		}
		c.Close()
		switch {
		case found.Holder == client.Ended, found.Holder == client.Unreadable: // it has just ended
		case found.Holder == client.Serving && interfaces.Ended(found.Alloc): // its taskapi is about to exit
		case found.Holder == client.Nobody, r.options.Replace:
			left = t.ID
		default:
			return "", r.errRuns(ctx, cmp.Or(found.Alloc, t.Alloc))
		}
	}
	return left, err
}

// errRuns refuses to run an allocation that a taskapi runs.
func (r *request) errRuns(ctx context.Context, alloc *api.Allocation) error {
	if alloc.DesiredStatus == api.AllocDesiredStatusStop {
		return fmt.Errorf("allocation %s is being stopped: run it again when it has ended ('%s' follows it)",
			alloc.ID, r.layout.Command("attach", alloc.ID))
	}
	if r.loaded != nil { // with --all, it runs beside the others
		return &runsError{alloc}
	}
	another := ""
	if free := r.freeIndex(ctx); free <= maxIndex {
		another = fmt.Sprintf("--index %d runs another one beside it, ", free)
	}
	id := output.ShortID(alloc.ID)
	return base.Usagef("a taskapi runs %s already, as allocation %s: '%s JOBFILE' gives it another version of the job, "+
		"'%s' other flags; %s--replace stops it and runs it again", alloc.Name, alloc.ID, r.layout.Command("update", id),
		r.layout.Command("takeover", id), another)
}

// runsError says that a taskapi runs an allocation already.
type runsError struct{ alloc *api.Allocation }

func (e *runsError) Error() string {
	return e.alloc.Name + " runs already, as allocation " + e.alloc.ID
}

// freeIndex returns the first number with which no allocation of the group runs.
func (r *request) freeIndex(ctx context.Context) int {
	all, _ := r.layout.Running(ctx, r.alloc) // those that are known
	taken := func(index int) bool {
		name := agent.AllocName(r.alloc.JobID, r.alloc.TaskGroup, index)
		return slices.ContainsFunc(all, func(t base.Target) bool { return t.Alloc.Name == name })
	}
	free := 0
	for taken(free) {
		free++
	}
	return free
}

// makeDir makes the data directory, unless claimName has done so.
func (r *request) makeDir() error {
	if r.name != nil {
		return nil
	}
	return r.layout.MakeDir()
}

// run runs the allocation in this process. waiting ends when a signal asks to give up steps that change nothing.
func (r *request) run(ctx, waiting context.Context) error {
	if err := r.makeDir(); err != nil {
		return err
	}
	logger := base.NewLogger(r.options.Verbose, r.environment)
	lockAlloc := r.layout.LockAlloc
	switch {
	case r.drawn:
		lockAlloc = r.layout.LockNew
	case r.options.takeOver:
		lockAlloc = r.layout.LockExisting
	}
	for since := time.Now(); ; {
		if err := r.makeFree(ctx, waiting); err != nil {
			return err
		}
		lock, err := lockAlloc(r.alloc.ID, logger) // waits for a moment when another process has it
		switch {
		case err == nil:
			err := r.layout.Explain(r.begin(ctx, lock, logger))
			if err != nil { // perhaps nothing has begun
				err = errors.Join(err, lock.Discard())
			}
			return errors.Join(err, lock.Close())
		case !errors.Is(err, state.ErrInUse):
			return err
		case time.Since(since) > client.BusyTimeout:
			return r.layout.ErrHeld(r.alloc.ID, err)
		}
	}
}

func (r *request) begin(ctx context.Context, lock *datadir.Lock, logger *slog.Logger) error {
	ring, err := r.options.tryFiles(r.layout) // before anything is changed
	if err != nil {
		return err
	}
	if r.options.takeOver {
		if lock.Saved() == nil || lock.Saved().Terminal {
			return fmt.Errorf("allocation %s has ended meanwhile", r.alloc.ID)
		}
		r.alloc = lock.Saved().Alloc // the other taskapi may have updated it
	}
	if lock.Saved() != nil && !lock.Saved().Terminal {
		if err := r.errOtherUsers(); err != nil {
			return err
		}
	}
	if !r.options.Detached { // its starter has said so already
		r.sayOwnUser()
	}
	manager, err := start.ServiceManager()
	if err != nil {
		return err
	}
	isParent := interfaces.IsParent(r.alloc.Job)
	if lock.Saved() == nil && !lock.Removed() && !isParent { // new
		if err := r.errPorts(); err != nil {
			return err
		}
	}
	lock.HoldName(r.name)
	changes, next, err := lock.Resume(ctx, r.alloc, r.options.Replace)
	if err != nil {
		return err
	}
	now := r.alloc
	if lock.Saved() != nil {
		now = lock.Saved().Alloc
	}
	if lock.Unused() && !isParent {
		defer allocrunner.PrepareKeeper(lock.Dir)()
	}
	if err := r.record.Save(lock.Dir); err != nil {
		if lock.Saved() == nil {
			return err
		}
		logger.Warn("the settings are not saved: the next run has those of the run before, unless they are given again",
			"error", err)
	}
	if err := r.layout.TakeSticky(ctx, lock, now); err != nil { // it saves the allocation, whose settings are there
		return err
	}
	p := follow.NewQueuedPrinter(r.environment.Stdout, now, r.options.JSON)
	p.Colors = r.environment.Colors()
	cfg := start.AgentConfig(r.layout, lock.ID, lock, logger, r.options.Settings, p, r.log, r.environment)
	defer cfg.Cluster.Close()
	cfg.Keyring = func() (*identity.Keyring, error) { return ring, nil }
	cfg.Factory = start.Factory(r.options.Settings, &start.Children{
		Layout: r.layout, Record: r.record, SealKey: r.options.SealKey, Environment: r.environment, Events: p, Logger: logger,
		Background: func(ctx context.Context, t base.Target, w base.Environment, args []string,
			done func(*api.Allocation) (bool, error)) error {
			return background(ctx, t, w, args, nil, done)
		},
	})
	if !isParent && r.options.Output.Wanted(r.environment, r.options.JSON) {
		p.Output = follow.NewTaskOutput(p, r.layout, now)
		p.Output.BeginAll()
		defer p.Output.Finish()
	} else {
		p.Failures = follow.NewFailures(r.layout, now)
	}
	cfg.Claim = r.claim
	cfg.Signals, cfg.Changes, cfg.Next, cfg.Submission = r.starting.HandOver(), changes, next, r.submission
	cfg.Fresh = r.options.Replace
	if !r.options.Detached {
		cfg.Manager = manager
	}
	if r.options.Verbose {
		defer start.PrintRefused(r.environment.Stderr, cfg.Refusals)
	}
	running, end := context.WithCancel(ctx)
	defer end()
	cfg.Factory = r.options.ExitFrom.Stopping(running, cfg.Factory, func(why string) { p.AllocEvent("Stopping", why) })
	_, err = agent.New(cfg).Run(ctx, r.alloc)
	return r.options.ExitFrom.Result(err)
}

// errPorts refuses to begin an allocation without its ports, devices and volumes. Another process may still take
// one before the allocation reserves it.
func (r *request) errPorts() error {
	for _, f := range slices.Concat(
		allocrunner.CheckPorts(r.alloc.GetTaskGroup(), r.options.HostIP, r.layout.Describe),
		r.options.CheckDevices(r.alloc, r.layout.Dir), r.options.CheckVolumes(r.alloc, r.layout.Allocs())) {
		text := r.source.FromFiles.Mask(f.Line(r.source.Place(f)))
		return errors.New(linewriter.OneLine(text) + "; nothing was started")
	}
	return nil
}

// errOtherUsers refuses to resume an allocation whose tasks run as other users than the flags say.
func (r *request) errOtherUsers() error {
	if r.usersBefore == r.options.IsolateUsers {
		return nil
	}
	return base.Usagef("the tasks of allocation %s run as other users than isolate_users says: stop it with '%s', "+
		"then run it again", r.alloc.ID, r.layout.Command("stop", r.alloc.ID))
}

// sayOwnUser warns of tasks that run as this program's user.
func (r *request) sayOwnUser() {
	start.Source{}.PrintFindings(r.environment.Stderr,
		agent.CheckOwnUser(r.alloc.GetTaskGroup(), r.options.IsolateUsers != ""))
}

// makeFree makes sure that no other taskapi runs the allocation. For a takeover it makes the other taskapi exit.
// Otherwise another taskapi is an error, unless it is exiting already.
func (r *request) makeFree(ctx, waiting context.Context) error {
	if r.options.takeOver {
		return r.takeOver(ctx)
	}
	c := r.target().Client()
	defer c.Close()
	found := c.Locate(ctx, client.Patient)
	switch {
	case found.Holder == client.Refusing, found.Holder == client.Hanging:
		return r.layout.ErrHeld(r.alloc.ID, found.Err)
	case found.Holder != client.Serving, interfaces.Ended(found.Alloc): // in the latter case its taskapi is about to exit
		return nil
	}
	if waiting.Err() != nil {
		return context.Cause(waiting)
	}
	_, err := c.Plan(waiting, r.alloc.Job)
	answer, ok := errors.AsType[*client.StatusError](err)
	if errors.Is(err, client.ErrNoAnswer) || ok && answer.Message == agent.MessageLeaving {
		return nil // it has exited or is about to: another one can have the allocation in a moment
	}
	if err := allocrunner.SameJob(found.Alloc, r.alloc); err != nil {
		return r.layout.Explain(err)
	}
	switch {
	case r.options.Replace && ok && answer.Status == http.StatusBadRequest: // the other taskapi can't run the job
		return base.Usagef("%w; allocation %s runs on", answer, r.alloc.ID)
	case r.options.Replace:
		return r.stopOther(waiting, c)
	}
	return r.errRuns(ctx, found.Alloc)
}

// stopOther makes the taskapi that runs the allocation stop it gracefully, and returns when it has ended. It first
// checks everything that could make this process fail afterwards.
func (r *request) stopOther(ctx context.Context, c *client.Client) error {
	if _, err := r.options.tryFiles(r.layout); err != nil {
		return err
	}
	runner, err := allocrunner.New(interfaces.Config{Alloc: r.alloc, Dir: r.layout.Alloc(r.alloc.ID),
		Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		err = runner.Validate(r.alloc.Job)
	}
	findings := r.options.CheckTasks(r.alloc, r.layout.Allocs())
	switch {
	case err != nil:
		return base.Usagef("%w; allocation %s runs on", err, r.alloc.ID)
	case review.AnyRefused(findings):
		r.source.PrintFindings(r.environment.Stderr, findings)
		return base.Usagef("%s can't run here (see above); allocation %s runs on", start.FileName(r.jobFile), r.alloc.ID)
	}
	r.environment.Warnf("stopping %s (allocation %s) gracefully, to run it again", r.alloc.Name, r.alloc.ID)
	for since := time.Now(); ; time.Sleep(client.Pause) {
		err := c.Stop(ctx, client.StopOptions{})
		if errors.Is(err, client.ErrNoAnswer) {
			return nil // the next look decides
		}
		if err == nil || ctx.Err() != nil {
			break
		}
		if time.Since(since) > client.BusyTimeout {
			return fmt.Errorf("allocation %s can't be stopped: %w", r.alloc.ID, err)
		}
	}
	c.Close() // for an open connection, the other taskapi would wait
	f := &follow.Follower{Target: r.target(), Quiet: true}
	_, err = f.Follow(ctx)
	return err
}

func allocationID(given string) (string, error) {
	if given == "" {
		return uuid.NewString(), nil
	}
	id := strings.ToLower(given)
	if !datadir.IsID(id) {
		return "", base.Usagef("--alloc-id %q is not a UUID: give one like %s, or none", given, uuid.NewString())
	}
	return id, nil
}
