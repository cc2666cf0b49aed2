package look

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
)

// State is the tree of taskapi state.
func State(w base.Environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "state",
		Short: "Print an allocation's saved state, or repair it",
		Long: `Prints or repairs an allocation's saved state, when something went wrong.

The state is the file state.db in the allocation's directory. Another taskapi resumes the allocation from it.`,
		Example: `  taskapi state dump 115ef685
  taskapi state repair 115ef685`,
	}
	var out base.OutputFlags
	dump := onState(w, func(w base.Environment, l base.Layout, id string) error {
		return dumpState(w, &out, l, id)
	}, &cobra.Command{
		Use:   "dump [flags] ALLOC",
		Short: "Print an allocation's state as JSON",
		Long: `Prints an allocation's saved state as JSON, also while the allocation runs.

If the state is damaged, the readable part is printed, the rest is named on standard error, and the exit code is 1.`,
		Example: `  taskapi state dump 115ef685
  taskapi state dump -t '{{.Version}}' 115ef685`,
	})
	base.AddOutput(dump, &out)
	cmd.AddCommand(dump, onState(w, repairState, &cobra.Command{
		Use:   "repair [flags] ALLOC",
		Short: "Make a damaged state usable again",
		Long: `Replaces a damaged state by a new one that has every readable record.

It keeps the damaged file beside the new one, and names what is lost. Look at the new state with 'taskapi state dump':
a record may be older than the task.`,
		Example: `  taskapi state repair 115ef685`,
	}))
	return cmd
}

// onState completes a command that does something with an allocation's state.
func onState(w base.Environment, do func(w base.Environment, l base.Layout, id string) error,
	cmd *cobra.Command) *cobra.Command {
	return base.OnTarget(w, base.ToRemove, cmd, func(_ context.Context, found base.Target) error {
		err := do(w, found.Layout, found.ID)
		if errors.Is(err, state.ErrNotFound) {
			return found.Layout.ErrNoState(found.ID)
		}
		return found.Layout.Explain(err)
	})
}

type stateJSON struct {
	Version string // of the taskapi that wrote last
	*interfaces.Saved
}

func dumpState(w base.Environment, out *base.OutputFlags, l base.Layout, id string) error {
	path := l.State(id)
	dump, err := state.Inspect(path)
	if err != nil {
		return err
	}
	for _, p := range dump.Problems {
		w.Warnf("%s: %s", path, linewriter.OneLine(p.Error()))
	}
	for _, name := range dump.Stale {
		w.Warnf("%s: %s: may be outdated", path, linewriter.OneLine(name))
	}
	if dump.Saved.Alloc == nil && len(dump.Saved.Tasks) == 0 {
		return fmt.Errorf("allocation %s: nothing can be read", id)
	}
	value := stateJSON{dump.Version, dump.Saved}
	if err := out.Print(w, value, nil, func() error { return output.JSON(w.Stdout, value) }); err != nil {
		return err
	}
	if len(dump.Problems) > 0 {
		return base.ErrSilent
	}
	return nil
}

func repairState(w base.Environment, l base.Layout, id string) error {
	repaired, err := state.Repair(l.State(id), w.Version, time.Now())
	switch {
	case errors.Is(err, state.ErrUndamaged):
		return w.Printf("the state of allocation %s is not damaged: there is nothing to repair\n", id)
	case errors.Is(err, state.ErrInUse):
		return fmt.Errorf("a taskapi runs allocation %s and has its state open: stop it first", id)
	case errors.Is(err, state.ErrLost):
		return fmt.Errorf("%w: kill what still runs with '%s', then run the job again", err, l.Command("stop", id))
	case err != nil:
		return err
	}
	var table output.Table
	for _, p := range repaired.Problems {
		table.Row("Damage", p.Error())
	}
	for _, name := range repaired.Stale {
		table.Row("May be outdated", name)
	}
	for _, name := range repaired.Lost {
		table.Row("Lost", name)
	}
	table.Row("Damaged file", repaired.KeptAs)
	table.Row("Resume", l.Command("takeover", id))
	table.Row("Stop", l.Command("stop", id))
	return w.Printf("%s", &table)
}
