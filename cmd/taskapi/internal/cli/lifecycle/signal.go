package lifecycle

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/client"
)

// commonSignals are offered for completion.
var commonSignals = []string{"SIGABRT", "SIGALRM", "SIGCONT", "SIGHUP", "SIGINT", "SIGKILL", "SIGQUIT", "SIGSTOP", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGWINCH"}

func Signal(w base.Environment) *cobra.Command {
	var dataDir, name string
	s := base.ToChange
	s.Tasks = base.AnyTasks
	cmd := &cobra.Command{
		Use:   "signal [flags] [ALLOC] [TASK]",
		Short: "Send a signal to a task, or to all tasks of an allocation",
		Long: `Sends a signal to the process of a task, or without TASK to those of every task that runs. A task that ends by it is restarted, or not,
by its restart policy.
` + base.TaskArgs,
		Example: `  taskapi signal -s SIGHUP hello greeter
  taskapi signal -s SIGUSR1`,
		Args:              base.TargetArgs(s),
		ValidArgsFunction: base.CompleteTarget(&dataDir, w, s),
		RunE: func(cmd *cobra.Command, args []string) error {
			if name == "" {
				return base.Usage(errors.New("-s is missing: give the NAME of the signal, as in 'taskapi signal -s SIGHUP'"))
			}
			found, err := base.Find(cmd.Context(), w, dataDir, args, s)
			if err != nil {
				return err
			}
			err = found.Ask(cmd.Context(), func(_ *client.Client, sdk *api.Client) error {
				return sdk.Allocations().Signal(&api.Allocation{ID: found.ID}, (&api.QueryOptions{}).WithContext(cmd.Context()), found.Task, name)
			})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(w.Stdout, "sent %s to %s\n", name, found)
			return err
		},
	}
	base.AddDataDir(cmd, &dataDir)
	cmd.Flags().StringVarP(&name, "signal", "s", "", "`NAME` of the signal; it must be given")
	_ = cmd.RegisterFlagCompletionFunc("signal", func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return slices.DeleteFunc(slices.Clone(commonSignals), func(s string) bool {
			return !strings.HasPrefix(s, strings.ToUpper(begun))
		}), cobra.ShellCompDirectiveNoFileComp
	}) // the flag has just been added
	return cmd
}

var _ fmt.Stringer = base.Target{}
