package access

import (
	"context"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/internal/signals"
)

func Signal(w base.Environment) *cobra.Command {
	var name string
	s := base.ToChange
	s.Tasks = base.AnyTasks
	cmd := base.OnTarget(w, s, &cobra.Command{
		Use:   "signal [flags] [ALLOC] [TASK]",
		Short: "Send a signal to a task, or to every running task",
		Long: `Sends a signal to a task's process or, without TASK, to the process of every task that runs.

If the signal ends a task, the restart policy decides whether it starts again. The signal may also follow both ALLOC and
TASK.

` + base.TaskArgs,
		Example: `  taskapi signal -s SIGHUP hello greeter
  taskapi signal hello greeter HUP
  taskapi signal -s SIGUSR1`,
		Args: func(cmd *cobra.Command, args []string) error {
			given := name
			if name == "" && len(args) == 3 {
				given, args = args[2], args[:2]
			}
			if _, err := signals.Parse(given); given != "" && err != nil {
				return base.Usage(err)
			}
			return base.CheckArgs(cmd, args)
		},
		PreRunE: func(_ *cobra.Command, args []string) error {
			if name != "" || len(args) == 3 {
				return nil
			}
			return base.Usagef("-s is missing: give the NAME of the signal, as in 'taskapi signal -s SIGHUP'")
		},
	}, func(ctx context.Context, found base.Target) error {
		err := found.Ask(ctx, func(_ *client.Client, sdk *api.Client) error {
			return sdk.Allocations().Signal(&api.Allocation{ID: found.ID}, (&api.QueryOptions{}).WithContext(ctx), found.Task,
				name)
		})
		if err != nil {
			return err
		}
		return w.Printf("sent %s to %s\n", name, found)
	})
	send := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if name == "" {
			name, args = args[2], args[:2]
		}
		return send(cmd, args)
	}
	cmd.Flags().StringVarP(&name, "signal", "s", "", "`NAME` of the signal, with SIG or without")
	complete := cobra.FixedCompletions(signals.Common, cobra.ShellCompDirectiveNoFileComp)
	_ = cmd.RegisterFlagCompletionFunc("signal", complete) // the flag has just been added
	return cmd
}
