package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/signal"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/linewriter"
)

func updateCommand(w world) *cobra.Command {
	var flags jobFlags
	var dataDir string
	var force, detach bool
	cmd := &cobra.Command{
		Use:   "update [flags] ALLOC JOBFILE",
		Short: "Give a running allocation another version of its job",
		Long: `Compares the job file with the job that the allocation runs, prints each difference and whether it needs new processes, and gives the
allocation the new version. Changes that need new processes are refused, with exit code 2, and nothing changes; with --force the
allocation is stopped gracefully and run again, under the same ID and in the same directory.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usage(fmt.Errorf("want an allocation and a job file, not %d %s: taskapi update [flags] ALLOC JOBFILE",
					len(args), plural(len(args), "argument", "arguments")))
			}
			return nil
		},
		ValidArgsFunction: completeAllocation(&dataDir, w),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := newLayout(dataDir, w)
			if err != nil {
				return err
			}
			id, err := l.find(args[0])
			if err != nil {
				return err
			}
			return updateAllocation(cmd.Context(), l.client(id), flags, args[1], replacement{force, detach}, w)
		},
	}
	flags.addVars(cmd)
	addDataDir(cmd, &dataDir)
	cmd.Flags().BoolVar(&force, "force", false, "if the changes need new processes, stop the allocation gracefully and run it again")
	cmd.Flags().BoolVar(&detach, "detach", false, "with --force, return when the stop has begun")
	return cmd
}

// replacement says whether an allocation may be replaced, and whether nobody waits for that.
type replacement struct{ force, detach bool }

// updateAllocation is taskapi update.
func updateAllocation(ctx context.Context, c *client, flags jobFlags, jobFile string, how replacement, w world) error {
	defer c.close()
	current, _, err := c.allocation(ctx)
	for since := time.Now(); errors.Is(err, errSilentSidecar); current, _, err = c.allocation(ctx) {
		saved, readErr := c.layout.saved(c.id)
		switch busy := errors.Is(readErr, state.ErrInUse); {
		case busy && time.Since(since) < busyTimeout && !errors.Is(err, context.DeadlineExceeded): // it begins, or is replaced just now
			time.Sleep(startPause)
			continue
		case busy:
			return c.layout.errMute(c.id, err)
		case readErr == nil && saved.Over:
			return fmt.Errorf("allocation %s is over: it is %s; '%s' %s runs it anew", c.id, saved.Alloc.ClientStatus,
				c.layout.Command("run", "--force", "--alloc-id", c.id), withJobFile)
		}
		return fmt.Errorf("allocation %s: %w; '%s' %s goes on with it", c.id, err, c.layout.Command("run", "--alloc-id", c.id), withJobFile)
	}
	if refused(err) {
		return c.layout.errMute(c.id, err)
	}
	if err != nil {
		return fmt.Errorf("allocation %s: %w", c.id, err)
	}
	flags.group = current.TaskGroup
	job, _, err := flags.load(jobFile, w)
	if err != nil {
		return err
	}
	return c.update(ctx, current, job, how, w.stdout)
}

// update has a running allocation, which was as before, go on with a job, says what that changes, and returns when it
// can be asked again. Errors: errSilentSidecar, and usage errors for what can't be.
func (c *client) update(ctx context.Context, before *api.Allocation, job *api.Job, how replacement, out io.Writer) error {
	var plan api.JobPlanResponse
	if err := c.tell(ctx, "/v1/job/"+url.PathEscape(*job.ID)+"/plan", api.JobPlanRequest{Job: job, Diff: true}, &plan); err != nil {
		return c.updateError(err)
	}
	if plan.Diff == nil || len(plan.Diff.Fields) == 0 {
		_, err := fmt.Fprintf(out, "allocation %s runs this job: nothing to change\n", c.id)
		return err
	}
	destructive, err := printPlan(out, plan.Diff.Fields)
	if err != nil {
		return err
	}
	if destructive && !how.force {
		return usage(fmt.Errorf("allocation %s can't take over this job without new processes: it goes on as it is; "+
			"with --force it is stopped in order and run anew", c.id))
	}
	path := "/v1/jobs"
	if how.force {
		path += "?force=true"
	}
	request := api.JobRegisterRequest{Job: job, EnforceIndex: true, JobModifyIndex: plan.JobModifyIndex}
	if err := c.tell(ctx, path, request, nil); err != nil {
		return c.updateError(err)
	}
	if destructive {
		return c.awaitReplaced(ctx, before, how.detach, out)
	}
	_, err = fmt.Fprintf(out, "allocation %s goes on with the new version\n", c.id)
	return err
}

// awaitReplaced prints what happens to an allocation that is being replaced, and returns when its successor answers. Ctrl-C ends the waiting
// alone.
func (c *client) awaitReplaced(ctx context.Context, before *api.Allocation, detach bool, out io.Writer) error {
	_, err := fmt.Fprintf(out, "allocation %s is stopped in order and run anew; '%s' follows it\n", c.id, c.layout.Command("attach", c.id))
	if detach || err != nil {
		return err
	}
	ctx, release := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer release()
	isNew := func(a *api.Allocation) bool { return a.CreateTime != before.CreateTime }
	f := &follower{layout: c.layout, id: c.id, quiet: true, until: isNew, make: func(a *api.Allocation) *printer { return newPrinter(out, a, false) }}
	f.show(before)
	alloc, err := f.follow(ctx)
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("allocation %s is still being replaced; nobody waits for it any more", c.id)
	case err != nil:
		return err
	case !isNew(alloc):
		return fmt.Errorf("allocation %s was stopped before the new version began: it is %s", c.id, alloc.ClientStatus)
	case alloc.ClientStatus == api.AllocClientStatusFailed:
		return fmt.Errorf("allocation %s was run anew and has failed: %s", c.id, linewriter.OneLine(alloc.ClientDescription))
	}
	return nil
}

// annotationDestructive is Nomad's word for a change that takes new processes.
const annotationDestructive = "forces create/destroy update"

// printPlan prints what differs, and reports whether any of it takes new processes.
func printPlan(out io.Writer, changes []*api.FieldDiff) (destructive bool, err error) {
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, change := range changes {
		what := "in place"
		if slices.Contains(change.Annotations, annotationDestructive) {
			what, destructive = "needs new processes", true
		}
		fmt.Fprintf(table, "%s\t%s: %s\n", what, linewriter.OneLine(change.Name), linewriter.OneLine(change.New))
	}
	return destructive, table.Flush()
}

// updateError says why a sidecar does not take a job: its own words are about the job.
func (c *client) updateError(err error) error {
	refused, ok := errors.AsType[*refusedError](err)
	if !ok {
		return fmt.Errorf("allocation %s: %w", c.id, err)
	}
	err = fmt.Errorf("allocation %s: %w", c.id, refused)
	if refused.status == http.StatusBadRequest || refused.status == http.StatusNotFound {
		return usage(err)
	}
	return err
}
