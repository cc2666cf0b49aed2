package access

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"syscall"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/client"
)

func Restart(w base.Environment) *cobra.Command {
	var at base.TargetFlags
	var all, detach bool
	cmd := &cobra.Command{
		Use:   "restart [flags] [ALLOC] [TASK...]",
		Short: "Restart tasks, or every running task of an allocation",
		Long: `Restarts a task, or several one after the other, or, without TASK, every task that runs. A task that was
stopped stays so: 'taskapi start' starts it.

It prints the events, and returns when the new processes are ready and have run for a second. The restart is graceful
(kill_signal, kill_timeout; as in Nomad, no shutdown_delay) and does not count against the restart policy. Ctrl-C ends
the command, not the restart.

` + base.TaskArgs + `

Exit code: 0 when the tasks run again, 1 when one of them does not.`,
		Example: `  taskapi restart
  taskapi restart hello greeter
  taskapi restart --all-tasks hello`,
		RunE: func(cmd *cobra.Command, args []string) error {
			names, err := at.Names(args)
			switch {
			case err != nil:
				return err
			case all && (len(names) > 1 || at.GivesTask()):
				return base.Usagef("--all-tasks restarts all of them: leave out %q, or --all-tasks", names[len(names)-1])
			case all:
				at.Sought.Tasks = base.NoTask
			}
			found, err := at.FindTasks(cmd.Context(), args)
			for _, t := range found {
				if err == nil {
					err = restart(cmd.Context(), t, w, api.AllocationRestartRequest{TaskName: t.Task, AllTasks: all}, detach)
				}
			}
			return err
		},
	}
	at.Add(cmd, w, base.ToChangeTasks)
	cmd.Flags().BoolVar(&all, "all-tasks", false,
		"restart all tasks from the beginning of their life cycle, also those that have ended: prestart tasks run again")
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "return when the old processes have ended")
	return cmd
}

func restart(ctx context.Context, t base.Target, w base.Environment, want api.AllocationRestartRequest,
	detach bool) error {
	ctx, release := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer release()
	f := &follow.Follower{Target: t, W: w, Quiet: true}
	before, err := present(ctx, t)
	if err == nil && want.AllTasks {
		err = waitsForever(t, before)
	}
	if err != nil {
		return err
	}
	err = t.Ask(ctx, func(c *client.Client, _ *api.Client) (err error) {
		f.Show(before)
		f.Printer.AllocEvent("Restarting", "restarting "+t.String())
		return c.Restart(ctx, want)
	})
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: the restart may still be under way; this command waits no longer", t)
	}
	if err != nil || detach {
		return err
	}
	names := base.RunningTasks(before)
	switch {
	case t.Task != "":
		names = []string{t.Task}
	case want.AllTasks:
		names = startsAgain(t, before)
	}
	return f.AwaitStarted(ctx, before, names)
}

// startsAgain returns the tasks that a restart of all tasks starts: none that is stopped or paused, none that waits for
// such a task, and no poststop task.
func startsAgain(t base.Target, alloc *api.Allocation) (names []string) {
	paused := false // a main task is
	for _, t.Task = range base.TaskNames(alloc) {
		paused = paused || t.StartRank() == 1 && t.WhyPaused(alloc) != ""
	}
	for _, t.Task = range base.TaskNames(alloc) {
		if t.WhyPaused(alloc) == "" && !t.IsPoststop() && (t.StartRank() < 2 || !paused) {
			names = append(names, t.Task)
		}
	}
	return names
}

// present returns an allocation as it is now.
func present(ctx context.Context, t base.Target) (alloc *api.Allocation, err error) {
	err = t.Ask(ctx, func(c *client.Client, _ *api.Client) (err error) {
		alloc, _, err = c.Allocation(ctx)
		return err
	})
	return alloc, err
}

// waitsForever returns an error if a restart of all tasks would wait for a prestart task that is stopped, or paused by
// its schedule.
func waitsForever(t base.Target, alloc *api.Allocation) error {
	for _, t.Task = range base.TaskNames(alloc) {
		if why := t.WhyPaused(alloc); why != "" && t.StartRank() == 0 {
			return fmt.Errorf("the other tasks would wait for %s: %s", t, why)
		}
	}
	return nil
}
