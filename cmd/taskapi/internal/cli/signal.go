package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/output"
)

// commonSignals are offered for completion.
var commonSignals = []string{"SIGABRT", "SIGALRM", "SIGCONT", "SIGHUP", "SIGINT", "SIGKILL", "SIGQUIT", "SIGSTOP", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGWINCH"}

func signalCommand(w Environment) *cobra.Command {
	var dataDir, name string
	s := toChange
	s.tasks = anyTasks
	cmd := &cobra.Command{
		Use:   "signal [flags] [ALLOC] [TASK]",
		Short: "Send a signal to a task, or to all tasks of an allocation",
		Long: `Sends a signal to the process of a task, or without TASK to those of every task that runs. A task that ends by it is restarted, or not,
by its restart policy.
` + taskArgs,
		Example: `  taskapi signal -s SIGHUP hello greeter
  taskapi signal -s SIGUSR1`,
		Args:              targetArgs(s),
		ValidArgsFunction: completeTarget(&dataDir, w, s),
		RunE: func(cmd *cobra.Command, args []string) error {
			if name == "" {
				return usage(errors.New("-s is missing: give the NAME of the signal, as in 'taskapi signal -s SIGHUP'"))
			}
			found, err := find(cmd.Context(), w, dataDir, args, s)
			if err != nil {
				return err
			}
			err = found.ask(cmd.Context(), func(_ *client.Client, sdk *api.Client) error {
				return sdk.Allocations().Signal(&api.Allocation{ID: found.id}, (&api.QueryOptions{}).WithContext(cmd.Context()), found.task, name)
			})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(w.Stdout, "sent %s to %s\n", name, found)
			return err
		},
	}
	addDataDir(cmd, &dataDir)
	cmd.Flags().StringVarP(&name, "signal", "s", "", "`NAME` of the signal; it must be given")
	_ = cmd.RegisterFlagCompletionFunc("signal", func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return slices.DeleteFunc(slices.Clone(commonSignals), func(s string) bool {
			return !strings.HasPrefix(s, strings.ToUpper(begun))
		}), cobra.ShellCompDirectiveNoFileComp
	}) // the flag has just been added
	return cmd
}

// String names the target in a message.
func (t target) String() string {
	if t.task != "" {
		return fmt.Sprintf("task %q of allocation %s", t.task, output.ShortID(t.id))
	}
	return "allocation " + output.ShortID(t.id)
}

var _ fmt.Stringer = target{}
