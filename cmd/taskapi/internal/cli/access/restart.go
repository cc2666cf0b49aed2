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
	s := base.ToChange
	s.Tasks = base.AnyTasks
	cmd := &cobra.Command{
		Use:   "restart [flags] [ALLOC] [TASK]",
		Short: "Restart a task, or every running task of an allocation",
		Long: `Restarts a task or, without TASK, every task that runs.

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
			found, err := at.Find(cmd.Context(), args)
			if err != nil {
				return err
			}
			return restart(cmd.Context(), found, w, api.AllocationRestartRequest{TaskName: found.Task, AllTasks: all}, detach)
		},
	}
	at.Add(cmd, w, s)
	cmd.Flags().BoolVar(&all, "all-tasks", false,
		"restart all tasks from the beginning of their life cycle, also those that have ended: prestart tasks run again")
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "return when the old processes have ended")
	return cmd
}

func restart(ctx context.Context, t base.Target, w base.Environment, want api.AllocationRestartRequest,
	detach bool) error {
	ctx, release := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer release()
	var before *api.Allocation
	f := &follow.Follower{Target: t, W: w, Quiet: true}
	err := t.Ask(ctx, func(c *client.Client, _ *api.Client) (err error) {
		if before, _, err = c.Allocation(ctx); err != nil {
			return err
		}
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
	if t.Task != "" {
		return f.AwaitStarted(ctx, before, []string{t.Task})
	}
	return f.AwaitStarted(ctx, before, base.RunningTasks(before))
}
