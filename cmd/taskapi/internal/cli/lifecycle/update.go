package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/internal/slice"
)

func Update(w base.Environment) *cobra.Command {
	var flags start.JobFlags
	var at base.TargetFlags
	var all bool
	u := updater{environment: w}
	cmd := &cobra.Command{
		Use:        "update [flags] [ALLOC] JOBFILE",
		SuggestFor: []string{"plan", "diff", "edit", "patch", "set", "rollout", "replace", "revert", "promote"},
		Short:      "Give a running allocation another version of its job",
		Long: `Gives a running allocation another version of its job, and prints each difference.

Each line says whether the change is made in place, restarts a task, or needs new processes of the whole allocation.
Changes that are not made in place are refused, with exit code 2, and nothing changes, unless a flag allows them:

--restart restarts no more than the changes need. A new config, env, template or artifact of tasks restarts
these tasks alone, if they have not ended; the other tasks run on. Any other change that is not made in place, and one
of a task that has ended, such as a prestart task, needs the whole group: the allocation is stopped gracefully and run
again, under the same ID and in the same directory.

--replace does the latter in any case. --only TASK takes only that task from the job file, and leaves the rest of the
job as it runs.

A restarted task must run for a second: if it ends sooner, and its restart policy starts it again, update fails. With
--wait, update returns when the allocation is healthy with the new version, as 'taskapi run --wait' does, or in the
named state, and fails if it can't be any more.

--all makes the job's running allocations those of the job file: it stops those that are one too many for count, starts
those that are missing, with the settings of the others, and updates the others. Changes in place come first. New
processes come for max_parallel allocations of a group at a time: when these are healthy, the next ones follow. At the
first one that is unhealthy, the update stops, and the others keep the version that they have.

--dry-run only prints the differences, with the old and new values of config and env, and what would be restarted.
--json prints the same as an object with alloc, changes, restarts and replaces, also when the changes are made.

Without ALLOC, update takes the running allocation of the file's job.
Exit code: 0 when the allocation runs the job, or --dry-run has compared it; 1 when that failed; 2 when the job file or
a flag is wrong, or a change is not allowed.`,
		Example: `  taskapi update examples/hello.nomad.hcl
  taskapi update --dry-run examples/hello.nomad.hcl
  taskapi update --restart --wait examples/hello.nomad.hcl
  taskapi update --restart --only greeter hello examples/hello.nomad.hcl
  taskapi update --all --replace job.nomad.hcl`,
		Args: func(cmd *cobra.Command, args []string) error {
			return cmp.Or(u.until.CheckArgs(cmd.Flags(), args), base.CheckArgs(cmd, args))
		},
		PreRunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case u.replace && u.restart:
				return base.Usagef("--restart and --replace exclude each other: give one")
			case all && at.Given(args[:len(args)-1]):
				return base.Usagef("--all updates every allocation of the job: leave out ALLOC, or --all")
			case all && u.only != "":
				return base.Usagef("--only is for one allocation: leave out --all, and give ALLOC")
			case all && (u.detach || u.until.What != ""):
				return base.Usagef("--all waits until each allocation with new processes is healthy before it updates the next: " +
					"leave out --detach and --wait")
			case u.detach && u.until.What != "":
				return base.Usagef("--detach and --wait exclude each other: give one")
			}
			return u.until.CheckFlags(cmd.Flags())
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			jobFile, names := args[len(args)-1], args[:len(args)-1]
			if at.Given(names) {
				if u.Target, err = at.Find(cmd.Context(), names); err != nil {
					return err
				}
			}
			if all {
				r, err := newRollout(u, cmd, &flags, jobFile)
				if err != nil {
					return err
				}
				return r.run(at.DataDir)
			}
			loaded, err := flags.Read(jobFile, w)
			if err != nil {
				return err
			}
			if !at.Given(names) {
				if u.Target, err = allocationOf(cmd.Context(), w, at.DataDir, loaded.Job); err != nil {
					return err
				}
			}
			return u.run(cmd.Context(), func(group string, settings agent.Settings) (*api.Job, error) {
				u.fromFiles = loaded.FromFiles
				return loaded.Job, loaded.Choose(jobFile, group, settings, w)
			})
		},
	}
	at.Add(cmd, w, base.ToChange)
	cmd.Flags().BoolVar(&all, "all", false,
		"update all allocations of the job one after the other, as count and update say")
	cmd.Flags().BoolVar(&u.dryRun, "dry-run", false, "print what would change, and change nothing")
	cmd.Flags().BoolVar(&u.restart, "restart", false,
		"if the changes need new processes, restart the changed tasks or, where that does not suffice, the allocation")
	cmd.Flags().BoolVar(&u.replace, "replace", false,
		"if the changes need new processes, stop the allocation gracefully and run it again")
	cmd.Flags().StringVar(&u.only, "only", "", "change only this `TASK`")
	cmd.Flags().BoolVarP(&u.detach, "detach", "d", false, "don't wait until new processes run")
	u.until.AddOptional(cmd, "return when the allocation has the new version and is")
	cmd.Flags().BoolVar(&u.json, "json", false, "print a JSON object about the changes")
	flags.AddVars(cmd)
	return cmd
}

// allocationOf returns the running allocation of a job.
func allocationOf(ctx context.Context, w base.Environment, dataDir string, job *api.Job) (base.Target, error) {
	of, err := allocationsOf(ctx, w, dataDir, job)
	if err != nil || len(of) == 1 {
		return append(of, base.Target{})[0], err
	}
	ids := slice.Map(of, func(t base.Target) string {
		return fmt.Sprintf("%s (%s)", output.ShortID(t.ID), t.Alloc.Name)
	})
	return base.Target{}, base.Usagef("%d allocations of job %q run: give one of %s before JOBFILE, or --all", len(of),
		*job.ID, strings.Join(ids, ", "))
}

// allocationsOf returns the running allocations of a job, at least one.
func allocationsOf(ctx context.Context, w base.Environment, dataDir string, job *api.Job) ([]base.Target, error) {
	f, err := base.Look(ctx, w, dataDir)
	if err != nil {
		return nil, err
	}
	of := slices.DeleteFunc(f.Running(), func(t base.Target) bool {
		return t.Alloc == nil || t.Alloc.JobID != *job.ID || t.Alloc.Namespace != *job.Namespace
	})
	if len(of) == 0 {
		return nil, fmt.Errorf("no allocation of job %q runs in %s; 'taskapi run JOBFILE' runs one", *job.ID, f.Dirs())
	}
	return of, nil
}

// updater gives a running allocation another version of its job.
type updater struct {
	base.Target
	restart     bool // also a version that needs new processes of some tasks, or of all
	replace     bool // also a version that needs new processes
	detach      bool // don't wait for those
	until       start.WaitOptions
	only        string // the task that is changed; empty for all
	dryRun      bool
	json        bool
	fromFiles   *jobspec.FromFiles
	labels      *follow.Labels // of several allocations; nil for one
	environment base.Environment
}

// run is taskapi update. choose returns the job, reviewed for the allocation's group and settings.
func (u *updater) run(ctx context.Context, choose func(group string, settings agent.Settings) (*api.Job, error)) error {
	c := u.Client()
	defer c.Close()
	found := c.Locate(ctx, client.Following)
	if hasEnded(found) {
		found.Holder = client.Ended
	}
	switch found.Holder {
	case client.Refusing, client.Hanging, client.Unreadable:
		return u.ErrUnserved(found)
	case client.Ended:
		return fmt.Errorf("allocation %s has ended (%s); '%s' %s runs it again", u.ID, found.Alloc.ClientStatus,
			u.Layout.RunCommand(found.Alloc), base.WithJobFile)
	case client.Nobody:
		return fmt.Errorf("no taskapi runs allocation %s; '%s' %s resumes it with the new version", u.ID,
			u.Layout.RunCommand(found.Alloc), base.WithJobFile)
	}
	kept, err := u.Layout.Remembered(u.ID)
	if err != nil {
		return err
	}
	job, err := choose(found.Alloc.TaskGroup, kept)
	if err == nil && u.only != "" {
		job, err = withTask(found.Alloc, job, u.only)
	}
	if err != nil {
		return err
	}
	return u.update(ctx, c, found.Alloc, job)
}

// hasEnded reports whether the allocation has ended, while its taskapi still answers. A plan for it has no changes.
func hasEnded(found client.Location) bool {
	return found.Holder == client.Serving && interfaces.Ended(found.Alloc) && !interfaces.Replaced(found.Alloc)
}

// awaitExit reports whether an allocation has ended, though that may not be saved yet. It waits until the taskapi of an
// ended one has exited: another one of its name can start then.
func awaitExit(ctx context.Context, t base.Target) (ended bool, err error) {
	c := t.Client()
	defer c.Close()
	found := c.Locate(ctx, client.Patient)
	if !hasEnded(found) {
		return found.Holder == client.Ended, nil
	}
	_, err = (&follow.Follower{Target: t, Quiet: true}).Follow(ctx)
	return true, err
}

// forNextStart says how tasks get what applies from their next start: an update of before may have made it in place.
func (u *updater) forNextStart(l base.Layout) string {
	if !u.restart {
		return ""
	}
	return "; '" + l.Command("restart") + "' restarts tasks for what applies from their next start; --replace also " +
		"fetches artifacts again"
}

// update gives the allocation, whose last version is before, another job, prints the changes, and returns when the
// allocation runs the job. Errors: client.ErrNoAnswer, and usage errors for a job that the allocation can't have.
func (u *updater) update(ctx context.Context, c *client.Client, before *api.Allocation, job *api.Job) error {
	next := *before
	next.Job = job
	if err := u.until.Check(&next); err != nil {
		return base.Usage(err)
	}
	if err := u.errStopped(before); err != nil {
		return err
	}
	plan, err := c.Plan(ctx, job)
	if err != nil {
		return u.asError(err)
	}
	w := u.environment
	changes := u.changesOf(plan, before, job)
	if u.json {
		if err := output.JSON(w.Stdout, changes); err != nil {
			return err
		}
		w.Stdout, u.environment.Stdout = io.Discard, io.Discard
	}
	if len(changes.Changes) == 0 {
		err := w.Printf("allocation %s runs this job: nothing to change%s\n", u.ID, u.forNextStart(u.Layout))
		if err != nil || u.dryRun {
			return err
		}
		return u.await(ctx, &follow.Follower{Target: u.Target, Quiet: true})
	}
	if err := w.Printf("%s", changes.table()); err != nil {
		return err
	}
	if u.dryRun {
		return w.Printf("%sallocation %s is unchanged\n", changes.needs(), u.ID)
	}
	switch restarts := len(changes.Restarts) > 0; {
	case u.restart || u.replace:
	case restarts:
		return base.Usagef("allocation %s needs new processes of %s for this job, and is unchanged; --restart restarts no "+
			"other task, --replace stops the allocation gracefully and runs it again", u.ID, quoted(changes.Restarts))
	case changes.Replaces:
		return base.Usagef("allocation %s needs new processes for this job, and is unchanged; --restart or --replace stops "+
			"it gracefully and runs it again", u.ID)
	}
	return u.apply(ctx, c, before, job, plan, changes)
}

// errStopped refuses to wait for what the allocation can't become while one of its tasks is stopped.
func (u *updater) errStopped(before *api.Allocation) error {
	if u.replace || u.until.What == "" || u.until.What == start.WaitRunning {
		return nil
	}
	for t, tasks := u.Target, base.TaskNames(before); len(tasks) > 0; tasks = tasks[1:] {
		if t.Task = tasks[0]; interfaces.ShownSchedule(before.TaskStates[t.Task]) == interfaces.ScheduleForcedPause {
			return base.Usagef("--wait=%s would wait for %s, and nothing has changed: %s", u.until.What, t,
				t.WhyPaused(before))
		}
	}
	return nil
}

// apply makes the changes, and returns when the allocation runs the job and is in the state that --wait names.
func (u *updater) apply(ctx context.Context, c *client.Client, before *api.Allocation, job *api.Job,
	plan *api.JobPlanResponse, changes *jobChanges) error {
	restarts := len(changes.Restarts) > 0
	if err := c.Register(context.WithoutCancel(ctx), job, plan.JobModifyIndex, u.restart,
		u.replace || changes.Replaces); err != nil {
		return u.asError(err)
	}
	ctx, release := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM) // which end only the wait
	defer release()
	f := &follow.Follower{Target: u.Target, Quiet: true, W: u.environment, Labels: u.labels}
	if u.labels != nil && !u.json {
		f.W.Stdout = u.labels
	}
	f.Show(before)
	var err error
	switch {
	case changes.Replaces || restarts && u.replace:
		err = u.awaitReplaced(ctx, f, before)
	case restarts:
		err = u.awaitRestarted(ctx, f, before, changes.Restarts)
	default:
		err = u.environment.Printf("allocation %s runs the new version\n", u.ID)
	}
	if err != nil {
		return err
	}
	return u.await(ctx, f)
}

// await returns when the allocation is in the state that --wait names.
func (u *updater) await(ctx context.Context, f *follow.Follower) error {
	if u.until.What == "" {
		return nil
	}
	if err := u.until.Await(ctx, f, u.environment.Stderr); err != nil {
		return err
	}
	return u.environment.Printf("allocation %s is %s\n", u.ID, u.until.What)
}

// awaitRestarted prints the events of tasks that restart with a new version, and returns when they run, or have done
// their work. A task that is stopped is not waited for. With --wait, await does so.
func (u *updater) awaitRestarted(ctx context.Context, f *follow.Follower, before *api.Allocation,
	tasks []string) error {
	var stopped []string
	tasks = slices.DeleteFunc(slices.Clone(tasks), func(task string) bool {
		pauses := interfaces.ShownSchedule(before.TaskStates[task]).Pauses()
		if pauses {
			stopped = append(stopped, task)
		}
		return pauses
	})
	if len(stopped) > 0 {
		err := u.environment.Printf("allocation %s has the new version; %s will start with it\n", u.ID, quoted(stopped))
		if err != nil || len(tasks) == 0 {
			return err
		}
	}
	if u.detach || u.until.What != "" {
		return u.environment.Printf("allocation %s has the new version, and starts new processes of %s\n", u.ID,
			quoted(tasks))
	}
	if err := f.AwaitStarted(ctx, before, tasks); err != nil {
		return err
	}
	ended := slices.DeleteFunc(slices.Clone(tasks), func(task string) bool {
		state := f.Last.TaskStates[task]
		return state != nil && state.State == "running"
	})
	if len(ended) > 0 {
		return u.environment.Printf("allocation %s has the new version; %s ended with it\n", u.ID, quoted(ended))
	}
	return u.environment.Printf("allocation %s runs the new version, with new processes of %s\n", u.ID, quoted(tasks))
}

// awaitReplaced prints the events of an allocation that is being replaced, and returns when its successor runs.
func (u *updater) awaitReplaced(ctx context.Context, f *follow.Follower, before *api.Allocation) error {
	err := u.environment.Printf("allocation %s is stopped gracefully and run again; '%s' follows it\n", u.ID,
		u.Layout.Command("attach", u.ID))
	if u.detach || err != nil {
		return err
	}
	isNew := func(a *api.Allocation) bool { return a.CreateTime != before.CreateTime }
	f.Until = isNew
	alloc, err := f.Follow(ctx)
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("allocation %s is still being replaced; this command waits no longer", u.ID)
	case err != nil:
		return err
	case !isNew(alloc):
		return fmt.Errorf("allocation %s was stopped before the new version began (%s)", u.ID, alloc.ClientStatus)
	case alloc.ClientStatus == api.AllocClientStatusFailed:
		return fmt.Errorf("the new version of allocation %s has failed: %s", u.ID,
			linewriter.OneLine(alloc.ClientDescription))
	}
	return nil
}

// asError says why a taskapi refuses a job.
func (u *updater) asError(err error) error {
	wrapped := fmt.Errorf("allocation %s: %w", u.ID, err)
	if s, ok := errors.AsType[*client.StatusError](err); ok &&
		(s.Status == http.StatusBadRequest || s.Status == http.StatusNotFound) {
		return base.Usage(wrapped)
	}
	return wrapped
}
