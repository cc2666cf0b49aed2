package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
)

func gcCommand(w World) *cobra.Command {
	var dataDir string
	var all bool
	cmd := &cobra.Command{
		Use:   "gc [flags] [ALLOC...]",
		Short: "Remove ended allocations with their directories",
		Long: `Removes the named allocations, or with --all every one that has ended: their directories with logs and state. An allocation that has not
ended is refused and stays as it is.`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 && !all:
				return usage(errors.New("ALLOC is missing: taskapi gc [flags] ALLOC..., or --all for every allocation that is over"))
			case len(args) > 0 && all:
				return usage(fmt.Errorf("--all removes every allocation that is over: leave out %q, or --all", args[0]))
			}
			return nil
		},
		ValidArgsFunction: completeAllocation(&dataDir, w),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := newLayout(dataDir, w)
			if err != nil {
				return err
			}
			ids, err := l.removable(args)
			if err != nil {
				return err
			}
			if len(ids) == 0 {
				fmt.Fprintf(w.Stdout, "no allocation in %s is over\n", l.Dir)
			}
			errs := []error{l.RemoveLeftovers()}
			for _, id := range ids {
				if err := l.remove(cmd.Context(), id, w); err != nil {
					errs = append(errs, err)
					continue
				}
				fmt.Fprintf(w.Stdout, "removed %s\n", id)
			}
			return errors.Join(errs...)
		},
	}
	addDataDir(cmd, &dataDir)
	cmd.Flags().BoolVar(&all, "all", false, "remove every allocation that has ended")
	return cmd
}

// removable are the allocations that are named, or all whose state says that they are over.
func (l layout) removable(names []string) ([]string, error) {
	if len(names) == 0 {
		return l.Ended()
	}
	ids := make([]string, len(names))
	for i, name := range names {
		id, err := l.find(name)
		if err != nil {
			return nil, err
		}
		ids[i] = id
	}
	return ids, nil
}

// unreadable adds to the error of a state that nobody can tell from whether the allocation is over what gives that up for good.
func (l layout) unreadable(id string, err error) error {
	if !errors.Is(err, state.ErrDamaged) && !errors.Is(err, state.ErrOlder) && !errors.Is(err, state.ErrNewer) {
		return err
	}
	return fmt.Errorf("allocation %s may not be over: %w\nto give it up, '%s' ends what still runs; then remove the directory %s",
		id, err, l.Command("stop", id), l.Alloc(id))
}

// remove removes an allocation that is over, or that has never begun.
func (l layout) remove(ctx context.Context, id string, w World) (err error) {
	lock, err := l.lock(id, newLogger(false, w))
	if errors.Is(err, state.ErrInUse) {
		return fmt.Errorf("allocation %s runs: '%s' ends it", id, l.Command("stop", id))
	}
	if err != nil {
		return l.unreadable(id, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	err = lock.Destroy(ctx)
	if errors.Is(err, interfaces.ErrNotTerminal) {
		return fmt.Errorf("allocation %s: %w: '%s' ends it", id, interfaces.ErrNotTerminal, l.Command("stop", id))
	}
	return err
}
