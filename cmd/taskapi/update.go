package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"text/tabwriter"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

func updateCommand(w world) *cobra.Command {
	var flags jobFlags
	var dataDir string
	var force bool
	cmd := &cobra.Command{
		Use:   "update [flags] ALLOC JOBFILE",
		Short: "Give a running allocation another version of its job",
		Long: `Compares the job file with the job that the allocation runs, prints each difference with what it takes, and has the allocation
go on with the new version. What can't be done in place is refused, with exit code 2 and the tasks untouched; with --force the
allocation is stopped in order and run anew, under the same ID and in the same directory.`,
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
			return updateAllocation(cmd.Context(), l.client(id), flags, args[1], force, w)
		},
	}
	flags.addVars(cmd)
	addDataDir(cmd, &dataDir)
	cmd.Flags().BoolVar(&force, "force", false, "stop the allocation in order and run it anew when it takes new processes")
	return cmd
}

// updateAllocation is taskapi update.
func updateAllocation(ctx context.Context, c *client, flags jobFlags, jobFile string, force bool, w world) error {
	defer c.close()
	current, _, err := c.allocation(ctx)
	if errors.Is(err, errSilentSidecar) {
		if saved, readErr := c.layout.saved(c.id); readErr == nil && saved.Over {
			return fmt.Errorf("allocation %s is over: it is %s; '%s' %s runs it anew", c.id, saved.Alloc.ClientStatus,
				c.layout.command("run", "--force", "--alloc-id", c.id), withJobFile)
		}
		return fmt.Errorf("allocation %s: %w; '%s' %s goes on with it", c.id, err, c.layout.command("run", "--alloc-id", c.id), withJobFile)
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
	return c.update(ctx, job, force, w.stdout)
}

// update has a running allocation go on with a job, and says what that changes. Errors: errSilentSidecar, and usage errors for what can't
// be.
func (c *client) update(ctx context.Context, job *api.Job, force bool, out io.Writer) error {
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
	if destructive && !force {
		return usage(fmt.Errorf("allocation %s can't take over this job without new processes: it goes on as it is; "+
			"with --force it is stopped in order and run anew", c.id))
	}
	path := "/v1/jobs"
	if force {
		path += "?force=true"
	}
	request := api.JobRegisterRequest{Job: job, EnforceIndex: true, JobModifyIndex: plan.JobModifyIndex}
	if err := c.tell(ctx, path, request, nil); err != nil {
		return c.updateError(err)
	}
	done := "goes on with the new version"
	if destructive {
		done = fmt.Sprintf("is stopped in order and run anew; '%s' follows it", c.layout.command("attach", c.id))
	}
	_, err = fmt.Fprintf(out, "allocation %s %s\n", c.id, done)
	return err
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
		fmt.Fprintf(table, "%s\t%s: %s\n", what, oneLine(change.Name), oneLine(change.New))
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
