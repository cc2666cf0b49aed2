package lifecycle

import (
	"context"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/client"
)

// commonSignals are offered for completion.
var commonSignals = []string{"SIGABRT", "SIGALRM", "SIGCONT", "SIGHUP", "SIGINT", "SIGKILL", "SIGQUIT", "SIGSTOP",
	"SIGTERM", "SIGUSR1", "SIGUSR2", "SIGWINCH"}

func Signal(w base.Environment) *cobra.Command {
	var name string
	s := base.ToChange
	s.Tasks = base.AnyTasks
	cmd := base.OnTarget(w, s, &cobra.Command{
		Use:   "signal [flags] [ALLOC] [TASK]",
		Short: "Send a signal to a task, or to every running task",
		Long: `Sends a signal to a task's process or, without TASK, to the process of every task that runs.

If the signal ends a task, the restart policy decides whether it starts again.

` + base.TaskArgs,
		Example: `  taskapi signal -s SIGHUP hello greeter
  taskapi signal -s SIGUSR1`,
		PreRunE: func(*cobra.Command, []string) error {
			if name == "" {
				return base.Usagef("-s is missing: give the NAME of the signal, as in 'taskapi signal -s SIGHUP'")
			}
			return nil
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
	cmd.Flags().StringVarP(&name, "signal", "s", "", "`NAME` of the signal; it must be given")
	// the flag has just been added
	_ = cmd.RegisterFlagCompletionFunc("signal", cobra.FixedCompletions(commonSignals, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}
