package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
)

func Update(w base.Environment) *cobra.Command {
	var flags start.JobFlags
	var at base.TargetFlags
	u := updater{environment: w}
	cmd := &cobra.Command{
		Use:   "update [flags] [ALLOC] JOBFILE",
		Short: "Give a running allocation another version of its job",
		Long: `Gives a running allocation another version of its job, and prints each difference.

Each line says whether the change is made in place or needs new processes. Changes that need new processes are
refused, with exit code 2, and nothing changes. With --replace, the allocation is stopped gracefully and run again,
under the same ID and in the same directory. --dry-run only prints the differences.

Without ALLOC, update takes the running allocation of the file's job.`,
		Example: `  taskapi update examples/hello.nomad.hcl
  taskapi update --dry-run examples/hello.nomad.hcl
  taskapi update --replace hello examples/hello.nomad.hcl`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			jobFile, names := args[len(args)-1], args[:len(args)-1]
			if at.Given(names) {
				if u.Target, err = at.Find(cmd.Context(), names); err != nil {
					return err
				}
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
				return loaded.Job, loaded.Choose(jobFile, group, settings, w)
			})
		},
	}
	at.Add(cmd, w, base.ToChange)
	cmd.Flags().BoolVar(&u.dryRun, "dry-run", false, "print what would change, and change nothing")
	cmd.Flags().BoolVar(&u.replace, "replace", false,
		"if the changes need new processes, stop the allocation gracefully and run it again")
	cmd.Flags().BoolVarP(&u.detach, "detach", "d", false, "with --replace, return when the stop has begun")
	flags.AddVars(cmd)
	return cmd
}

// allocationOf returns the running allocation of a job.
func allocationOf(ctx context.Context, w base.Environment, dataDir string, job *api.Job) (base.Target, error) {
	f, err := base.NewFinder(w, dataDir)
	if err == nil {
		err = f.Look(ctx, nil)
	}
	if err != nil {
		return base.Target{}, err
	}
	of := slices.DeleteFunc(f.Running(), func(t base.Target) bool {
		return t.Alloc == nil || t.Alloc.JobID != *job.ID || t.Alloc.Namespace != *job.Namespace
	})
	switch {
	case len(of) == 0:
		return base.Target{}, fmt.Errorf("no allocation of job %q runs in %s; 'taskapi run JOBFILE' runs one", *job.ID,
			f.Dirs())
	case len(of) > 1:
		var ids []string
		for _, t := range of {
			ids = append(ids, fmt.Sprintf("%s (%s)", output.ShortID(t.ID), t.Alloc.Name))
		}
		return base.Target{}, base.Usagef("%d allocations of job %q run: give one of %s before JOBFILE", len(of), *job.ID,
			strings.Join(ids, ", "))
	}
	return of[0], nil
}

// updater gives a running allocation another version of its job.
type updater struct {
	base.Target
	replace     bool // also a version that needs new processes
	detach      bool // don't wait for those
	dryRun      bool
	environment base.Environment
}

// run is taskapi update. choose returns the job, reviewed for the allocation's group and settings.
func (u *updater) run(ctx context.Context, choose func(group string, settings agent.Settings) (*api.Job, error)) error {
	c := u.Client()
	defer c.Close()
	found := c.Locate(ctx, client.Following)
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
	if err != nil {
		return err
	}
	return u.update(ctx, c, found.Alloc, job)
}

// update gives the allocation, whose last version is before, another job, prints the changes, and returns when the
// allocation runs the job. Errors: client.ErrNoAnswer, and usage errors for a job that the allocation can't have.
func (u *updater) update(ctx context.Context, c *client.Client, before *api.Allocation, job *api.Job) error {
	plan, err := c.Plan(ctx, job)
	if err != nil {
		return u.asError(err)
	}
	if plan.Diff == nil || len(plan.Diff.Fields) == 0 {
		return u.environment.Printf("allocation %s runs this job: nothing to change\n", u.ID)
	}
	var table output.Table
	for _, change := range plan.Diff.Fields {
		what := "in place"
		if slices.Contains(change.Annotations, annotationDestructive) {
			what = "needs new processes"
		}
		table.Row(what, change.Name+": "+change.New)
	}
	if err := u.environment.Printf("%s", &table); err != nil {
		return err
	}
	if u.dryRun {
		return u.environment.Printf("allocation %s is unchanged\n", u.ID)
	}
	destructive := false
	if plan.Annotations != nil && plan.Annotations.DesiredTGUpdates[before.TaskGroup] != nil {
		destructive = plan.Annotations.DesiredTGUpdates[before.TaskGroup].DestructiveUpdate > 0
	}
	if destructive && !u.replace {
		return base.Usagef("allocation %s needs new processes for this job, and is unchanged; --replace stops it "+
			"gracefully and runs it again", u.ID)
	}
	if err := c.Register(context.WithoutCancel(ctx), job, plan.JobModifyIndex, u.replace); err != nil {
		return u.asError(err)
	}
	if destructive {
		return u.awaitReplaced(ctx, before)
	}
	return u.environment.Printf("allocation %s runs the new version\n", u.ID)
}

// awaitReplaced prints the events of an allocation that is being replaced, and returns when its successor runs. Ctrl-C
// ends only the wait.
func (u *updater) awaitReplaced(ctx context.Context, before *api.Allocation) error {
	err := u.environment.Printf("allocation %s is stopped gracefully and run again; '%s' follows it\n", u.ID,
		u.Layout.Command("attach", u.ID))
	if u.detach || err != nil {
		return err
	}
	ctx, release := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer release()
	isNew := func(a *api.Allocation) bool { return a.CreateTime != before.CreateTime }
	f := &follow.Follower{Target: u.Target, Quiet: true, Until: isNew, W: u.environment}
	f.Show(before)
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

// annotationDestructive is Nomad's word for a change that needs new processes.
const annotationDestructive = "forces create/destroy update"

// asError says why a taskapi refuses a job.
func (u *updater) asError(err error) error {
	wrapped := fmt.Errorf("allocation %s: %w", u.ID, err)
	if s, ok := errors.AsType[*client.StatusError](err); ok &&
		(s.Status == http.StatusBadRequest || s.Status == http.StatusNotFound) {
		return base.Usage(wrapped)
	}
	return wrapped
}
