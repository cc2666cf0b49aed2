package lifecycle

import (
	"context"
	"errors"
	"os/signal"
	"syscall"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
)

func Attach(w base.Environment) *cobra.Command {
	var dataDir string
	var asJSON bool
	var out follow.OutputFlag
	cmd := &cobra.Command{
		Use:   "attach [flags] [ALLOC]",
		Short: "Follow a running allocation",
		Long: `Prints the events of an allocation so far, and then each as it happens, with what the tasks print from now on, in the format of run. Without ALLOC it follows the only one
that runs. Ctrl-C ends the command, not the allocation. Of an allocation that has ended it prints the events.
Exit code: that of run when the allocation ends (0 complete or stopped, 1 failed), 0 after Ctrl-C, 1 when its taskapi is killed or
leaves it, with a message.`,
		Example: `  taskapi attach
  taskapi attach hello`,
		Args:              base.TargetArgs(base.ToRead),
		ValidArgsFunction: base.CompleteTarget(&dataDir, w, base.ToRead),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.Check(); err != nil {
				return err
			}
			s := base.ToRead
			s.Reads = len(args) > 0 // without, it is for what runs
			found, err := base.Find(cmd.Context(), w, dataDir, args, s)
			if err != nil {
				return err
			}
			f := &follow.Follower{Layout: found.Layout, ID: found.ID, Make: follow.Printers(w, asJSON)}
			f.Output = out.Wanted(w, asJSON)
			f.Words = !f.Output
			return attach(cmd.Context(), f)
		},
	}
	base.AddDataDir(cmd, &dataDir)
	out.Add(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print events as JSON lines")
	return cmd
}

// attach follows an allocation to its end, or to a signal.
func attach(ctx context.Context, f *follow.Follower) error {
	ctx, release := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer release()
	alloc, err := f.Follow(ctx)
	f.Tasks.Finish()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	if err != nil {
		return err
	}
	f.Printer.Ended(alloc, "")
	if alloc.ClientStatus == api.AllocClientStatusFailed {
		return base.ErrSilent
	}
	return nil
}
