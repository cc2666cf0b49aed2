// Package lifecycle has the commands that begin, change and end allocations: run, attach, update, takeover, restart,
// signal, stop, gc and state.
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

// runOptions are the flags of taskapi run.
type runOptions struct {
	start.Options
	takeOver bool // it is taskapi takeover: the saved job runs on
}

func Run(w base.Environment) *cobra.Command {
	var opts runOptions
	cmd := &cobra.Command{
		Use:   "run [flags] JOBFILE",
		Short: "Run an allocation, in the foreground or with --detach",
		Long: `Runs one allocation of the job file and prints its events, one a line. On a terminal it also prints the
tasks' output, with | before standard output and ! before standard error. Elsewhere, the last lines of a task's
standard error stand under the event of its failure.

SIGINT and SIGTERM stop it gracefully (kill_signal, kill_timeout, shutdown_delay); a second one kills every task
immediately. SIGUSR1 ends taskapi and leaves the tasks running: the next run of the job resumes the allocation, as it
does after taskapi was killed.
As root, --isolate-users gives each task a user of its own. With --detach, --wait returns when the allocation is
healthy, running or complete; the exit code is 1, with the reason, when it can't become so any more.

If a taskapi runs the job already, run is refused: 'taskapi update' gives the allocation another version of the job,
and a new --alloc-id runs a second copy. If the allocation of --alloc-id exists, run resumes it. The flags of its last
run hold unless others are given; give the job file's variables again. If the job file has another version of the job,
changes that need no new process are applied. Other changes are refused without --force, which stops the allocation
gracefully and runs it again.
Exit code: 0 when the allocation completes, is stopped or left running, 1 when it fails, 2 when the job file or a flag
is wrong.`,
		Example: `  taskapi run examples/hello.nomad.hcl
  taskapi run --detach --wait --isolate-users examples/hello.nomad.hcl
  taskapi run --var version=2 --alloc-id 6d0c4a3e-51c4-4c1f-9c60-6a2a4e4bd3ab job.nomad.hcl`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 && cmd.Flags().Changed(start.IsolateFlag) {
				if isRange, _ := regexp.MatchString(`^[0-9]+-[0-9]+$`, args[0]); isRange {
					return base.Usagef("--%s takes its range after an equals sign: --%s=%s", start.IsolateFlag,
						start.IsolateFlag, args[0])
				}
			}
			return base.CheckArgs(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			err := opts.Until.CheckFlags(cmd.Flags())
			if err == nil && cmd.Flags().Changed("wait") && !opts.Detach {
				err = base.Usagef("--wait is for --detach: in the foreground, run returns when the allocation has ended")
			}
			if err != nil {
				return err
			}
			return opts.inProcess(cmd, w, func(waiting context.Context, r *request) error {
				if args[0] == "-" {
					r.environment.Stdin = start.Interruptible{Ctx: waiting, From: w.Stdin}
				}
				if err := r.read(waiting, args[0], cmd.Flags()); err != nil {
					return cmp.Or(context.Cause(waiting), err)
				}
				if err := r.putVarItems(waiting); err != nil {
					return err
				}
				if opts.Detach {
					return r.detach(waiting, cmd)
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
	before      string          // the setting isolate_users of the allocation's last run
	record      settings.Record // of this run
	jobFile     string
	layout      base.Layout
	drawn       bool            // the allocation's ID was drawn at random just now
	alloc       *api.Allocation // as it would begin
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
func (r *request) read(ctx context.Context, jobFile string, flags *pflag.FlagSet) (err error) {
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
	before := "" // the group of an allocation that exists already
	if dump, err := state.Inspect(r.layout.State(id)); err == nil && dump.Saved.Alloc != nil {
		before = dump.Saved.Alloc.TaskGroup
	}
	o.Group = cmp.Or(o.Group, before)
	loaded, err := o.Load(jobFile, o.Settings, r.environment)
	if err != nil {
		return err
	}
	r.alloc, r.submission = agent.NewAllocation(id, loaded.Job, loaded.Group), loaded.Submission
	if o.AllocID == "" {
		switch left, err := leftRunning(ctx, r.layout, r.alloc); {
		case err != nil:
			return err
		case left != "":
			if text, ok := r.environment.Stdin.(*bytes.Reader); ok {
				_, _ = text.Seek(0, io.SeekStart) // it can
			}
			o.AllocID = left
			return r.read(ctx, jobFile, flags)
		}
	}
	if before == "" && !o.Detached { // the process that started this one has printed it
		warnings := slices.DeleteFunc(o.CheckTasks(r.alloc, r.layout.Allocs()), func(f review.Finding) bool {
			return f.Severity == review.Refused // which the start reports
		})
		start.PrintFindings(r.environment.Stderr, warnings, loaded.FromFiles)
	}
	if err := errors.Join(o.CheckUsers(loaded.Group), o.Until.Check(r.alloc)); err != nil {
		return base.Usage(loaded.Hide(err))
	}
	if !o.Detached {
		r.variables, err = readVarItems(o.VarItems, r.alloc.Namespace, r.environment)
	}
	return err
}

// readSettings sets the settings to those that are given now, those that the allocation remembers, and the machine's.
func (r *request) readSettings(id string, flags *pflag.FlagSet) error {
	kept, err := r.layout.Record(id)
	if err != nil && !errors.Is(err, fs.ErrPermission) { // then nothing of the allocation can be had, which is said soon
		return err
	}
	if before, err := kept.Settings(); err == nil {
		r.before = before.IsolateUsers
	}
	r.record, r.options.Settings, err = r.options.Next(kept, flags, true, r.environment)
	return err
}

// leftRunning returns the allocation of the same job and group that a taskapi has left running, empty for none. A
// running taskapi is an error.
func leftRunning(ctx context.Context, l base.Layout, alloc *api.Allocation) (left string, err error) {
	ids, _ := l.IDs() // an error of the data directory is reported when that is made
	for _, id := range ids {
		if state.Ended(l.State(id)) { // as most of them, whose job need not be read
			continue
		}
		k := l.Known(ctx, id)
		if !k.Running || k.Alloc == nil || k.Alloc.Namespace != alloc.Namespace ||
			allocrunner.SameJob(k.Alloc, alloc) != nil {
			continue
		}
		c := l.Client(id)
		found := c.Locate(ctx, client.Timeouts{})
		c.Close()
		switch {
		case found.Holder == client.Nobody:
			left = id
		case found.Holder == client.Ended, found.Holder == client.Unreadable: // it has just ended
		case found.Holder == client.Serving && interfaces.Ended(found.Alloc): // its taskapi is about to exit
		default:
			return "", errRuns(l, k.Alloc)
		}
	}
	return left, nil
}

// errRuns refuses to run an allocation that a taskapi runs.
func errRuns(l base.Layout, alloc *api.Allocation) error {
	id := output.ShortID(alloc.ID)
	return base.Usagef("a taskapi runs job %q already, in allocation %s: '%s JOBFILE' gives it another version, '%s' "+
		"other flags; --alloc-id %s runs a second copy",
		alloc.JobID, alloc.ID, l.Command("update", id), l.Command("takeover", id), uuid.NewString())
}

// run runs the allocation in this process. waiting ends when a signal asks to give up steps that change nothing.
func (r *request) run(ctx, waiting context.Context) error {
	if err := r.layout.MakeDir(); err != nil {
		return err
	}
	logger := base.NewLogger(r.options.Verbose, r.environment)
	lockAlloc := r.layout.LockAlloc
	if r.drawn {
		lockAlloc = r.layout.LockNew
	}
	for since := time.Now(); ; {
		if err := r.makeFree(ctx, waiting); err != nil {
			return err
		}
		lock, err := lockAlloc(r.alloc.ID, logger) // waits for a moment when another process has it
		switch {
		case err == nil:
			err := r.layout.Explain(r.begin(ctx, lock, logger))
			if base.IsUsage(err) { // nothing was started or changed
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

// begin runs the locked allocation.
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
	changes, next, err := lock.Resume(ctx, r.alloc, r.options.Force)
	if err != nil {
		return err
	}
	if lock.Unused() {
		defer allocrunner.PrepareKeeper(lock.Dir)()
	}
	if err := r.record.Save(lock.Dir); err != nil {
		if lock.Saved() == nil {
			return err
		}
		logger.Warn("the settings are not saved: the next run has those of the run before, unless they are given again",
			"error", err)
	}
	now := r.alloc
	if lock.Saved() != nil {
		now = lock.Saved().Alloc
	}
	p := follow.NewQueuedPrinter(r.environment.Stdout, now, r.options.JSON)
	p.Colors = r.environment.Colors()
	cfg := start.AgentConfig(r.layout, lock.ID, lock, logger, r.options.Settings, p, r.log, r.environment)
	defer cfg.Cluster.Close()
	cfg.Keyring = func() (*identity.Keyring, error) { return ring, nil }
	if r.options.Output.Wanted(r.environment, r.options.JSON) {
		p.Output = follow.NewTaskOutput(p, r.layout, now)
		p.Output.BeginAll()
		defer p.Output.Finish()
	} else {
		p.Failures = follow.NewFailures(r.layout, now)
	}
	cfg.Signals, cfg.Changes, cfg.Next, cfg.Submission = r.starting.HandOver(), changes, next, r.submission
	var refused start.Lacking
	if r.options.Verbose {
		cfg.Lacking = refused.Add
	}
	_, err = agent.New(cfg).Run(ctx, r.alloc)
	refused.Print(r.environment.Stderr)
	return err
}

// errOtherUsers refuses to resume an allocation whose tasks run as other users than the flags say.
func (r *request) errOtherUsers() error {
	if r.before == r.options.IsolateUsers {
		return nil
	}
	return base.Usagef("the tasks of allocation %s run as other users than isolate_users says: stop it with '%s', then run "+
		"it again with --force", r.alloc.ID, r.layout.Command("stop", r.alloc.ID))
}

// sayOwnUser warns of tasks that run as this program's user.
func (r *request) sayOwnUser() {
	start.PrintFindings(r.environment.Stderr, agent.CheckOwnUser(r.alloc.GetTaskGroup(), r.options.IsolateUsers != ""),
		nil)
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
	if found.Alloc.DesiredStatus == api.AllocDesiredStatusStop {
		return fmt.Errorf("allocation %s is being stopped; when it has ended ('%s' follows it), --force runs it again",
			r.alloc.ID, r.layout.Command("attach", r.alloc.ID))
	}
	return errRuns(r.layout, found.Alloc)
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
