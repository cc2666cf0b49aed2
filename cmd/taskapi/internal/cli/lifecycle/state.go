package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/linewriter"
)

// State is the tree of taskapi state.
func State(w base.Environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "state",
		Short: "Print an allocation's saved state, or repair it",
		Long: `An allocation's saved state, from which another taskapi can resume it: state.db in its directory. These commands
are for when something went wrong.`,
		Example: `  taskapi state dump 115ef685
  taskapi state repair 115ef685`,
	}
	cmd.AddCommand(stateDump(w), stateRepair(w))
	return cmd
}

func stateDump(w base.Environment) *cobra.Command {
	return stateVerb(w, &cobra.Command{
		Use:   "dump [flags] ALLOC",
		Short: "Print an allocation's state as JSON",
		Long: `Prints an allocation's saved state, also while it runs. Of a damaged state it prints what can be read, says
on standard error what can't, and exits with 1.`,
		Example: `  taskapi state dump 115ef685`,
	}, dumpState)
}

func stateRepair(w base.Environment) *cobra.Command {
	return stateVerb(w, &cobra.Command{
		Use:   "repair [flags] ALLOC",
		Short: "Make a damaged state usable again",
		Long: `Replaces a damaged state by a new one with everything that can be read of it, keeps the damaged one beside it, and says what is
lost. A task whose record is lost or old may differ from what was saved: 'taskapi state dump' shows it.`,
		Example: `  taskapi state repair 115ef685`,
	}, repairState)
}

// stateVerb completes a command that does something with one allocation's state.
func stateVerb(w base.Environment, cmd *cobra.Command, do func(w base.Environment, l base.Layout, id string) error) *cobra.Command {
	return base.OnTarget(w, base.ToRemove, cmd, func(_ context.Context, found base.Target) error {
		err := do(w, found.Layout, found.ID)
		if errors.Is(err, state.ErrNotFound) {
			return found.Layout.ErrNoState(found.ID)
		}
		return found.Layout.Explain(err)
	})
}

// stateJSON is what state dump prints.
type stateJSON struct {
	Version string // of the taskapi that wrote last
	*interfaces.Saved
}

func dumpState(w base.Environment, l base.Layout, id string) error {
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
	enc := json.NewEncoder(w.Stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(stateJSON{dump.Version, dump.Saved}); err != nil {
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
		return fmt.Errorf("%w: kill what still runs with '%s', then give another --alloc-id", err, l.Command("stop", id))
	case err != nil:
		return err
	}
	return printRepaired(w.Stdout, l, id, repaired)
}

func printRepaired(out io.Writer, l base.Layout, id string, r *state.Repaired) error {
	table := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	row := func(key, value string) { fmt.Fprintf(table, "%s\t%s\n", key, linewriter.OneLine(value)) }
	for _, p := range r.Problems {
		row("Damage", p.Error())
	}
	for _, name := range r.Stale {
		row("May be outdated", name)
	}
	for _, name := range r.Lost {
		row("Lost", name)
	}
	row("Damaged file", r.KeptAs)
	row("Resume", l.Command("run", "--alloc-id", id)+" "+base.WithJobFile)
	row("Stop", l.Command("stop", id))
	return table.Flush()
}
