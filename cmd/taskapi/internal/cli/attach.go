package cli

import (
	"context"
	"errors"
	"os/signal"
	"syscall"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

func attachCommand(w Environment) *cobra.Command {
	var dataDir string
	var asJSON bool
	var out outputFlag
	cmd := &cobra.Command{
		Use:   "attach [flags] [ALLOC]",
		Short: "Follow a running allocation",
		Long: `Prints the events of an allocation so far, and then each as it happens, with what the tasks print from now on, in the format of run. Without ALLOC it follows the only one
that runs. Ctrl-C ends the command, not the allocation. Of an allocation that has ended it prints the events.
Exit code: that of run when the allocation ends (0 complete or stopped, 1 failed), 0 after Ctrl-C, 1 when its taskapi is killed or
leaves it, with a message.`,
		Example: `  taskapi attach
  taskapi attach hello`,
		Args:              targetArgs(toRead),
		ValidArgsFunction: completeTarget(&dataDir, w, toRead),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			s := toRead
			s.reads = len(args) > 0 // without, it is for what runs
			found, err := find(cmd.Context(), w, dataDir, args, s)
			if err != nil {
				return err
			}
			f := &follower{layout: found.layout, id: found.id, make: printers(w, asJSON)}
			f.output = out.wanted(w, asJSON)
			f.words = !f.output
			return attach(cmd.Context(), f)
		},
	}
	addDataDir(cmd, &dataDir)
	out.add(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print events as JSON lines")
	return cmd
}

// printers makes printers to standard output.
func printers(w Environment, asJSON bool) func(*api.Allocation) *printer {
	return func(alloc *api.Allocation) *printer {
		p := newPrinter(w.Stdout, alloc, asJSON)
		p.colors = w.colors()
		return p
	}
}

// attach follows an allocation to its end, or to a signal.
func attach(ctx context.Context, f *follower) error {
	ctx, release := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer release()
	alloc, err := f.follow(ctx)
	f.tasks.finish()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	if err != nil {
		return err
	}
	f.printer.ended(alloc, "")
	if alloc.ClientStatus == api.AllocClientStatusFailed {
		return errSilent
	}
	return nil
}
