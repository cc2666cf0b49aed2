package lifecycle

import (
	"context"
	"errors"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
)

func Attach(w base.Environment) *cobra.Command {
	var asJSON bool
	var out follow.OutputFlag
	cmd := base.OnTarget(w, base.ToFollow, &cobra.Command{
		Use:   "attach [flags] [ALLOC]",
		Short: "Follow a running allocation",
		Long: `Prints the past events of a running allocation, then each new one and the tasks' new output.

The format is that of 'taskapi run'. Without ALLOC, attach follows the only allocation that runs. Ctrl-C ends attach,
not the allocation. If the allocation has ended, its events are printed.

Exit code: that of run when the allocation ends (0 complete or stopped, 1 failed), 0 after Ctrl-C, 1 when its taskapi
is killed or leaves it, with a message.`,
		Example: `  taskapi attach
  taskapi attach hello`,
	}, func(ctx context.Context, found base.Target) error {
		f := &follow.Follower{Target: found, W: w, JSON: asJSON}
		f.Output = out.Wanted(w, asJSON)
		f.Words = !f.Output
		return attach(ctx, f)
	})
	out.Add(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print events as JSON lines")
	return cmd
}

// attach follows an allocation to its end, or to a signal.
func attach(ctx context.Context, f *follow.Follower) error {
	ctx, release := base.UntilSignal(ctx)
	defer release()
	alloc, err := f.Follow(ctx)
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
