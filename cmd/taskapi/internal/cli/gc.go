package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/client"
)

func gcCommand(w Environment) *cobra.Command {
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
				return usage(errors.New("ALLOC is missing: taskapi gc [flags] ALLOC..., or --all for every allocation that has ended"))
			case len(args) > 0 && all:
				return usage(fmt.Errorf("--all removes every allocation that has ended: leave out %q, or --all", args[0]))
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
				fmt.Fprintf(w.Stdout, "no allocation in %s has ended\n", l.Dir)
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

// removable returns the allocations that are named, or all whose saved state says that they have ended.
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

// unreadable adds to the error of a state that does not say whether the allocation has ended how to give the allocation up.
func (l layout) unreadable(id string, err error) error {
	if !errors.Is(err, state.ErrDamaged) && !errors.Is(err, state.ErrOlder) && !errors.Is(err, state.ErrNewer) {
		return err
	}
	return fmt.Errorf("allocation %s may not have ended: %w\nto give it up, stop what still runs with '%s', then remove the directory %s",
		id, err, l.Command("stop", id), l.Alloc(id))
}

func (l layout) errRunning(id string) error {
	return fmt.Errorf("allocation %s is running: '%s' stops it", id, l.Command("stop", id))
}

// answers reports whether a taskapi serves the allocation's API, such as that of a simulated one, which saves nothing.
func (l layout) answers(ctx context.Context, id string) bool {
	c := l.client(id)
	defer c.Close()
	switch c.Locate(ctx, client.Timeouts{}).Holder {
	case client.Serving, client.Refusing, client.Hanging:
		return true
	}
	return false
}

// remove removes an allocation that has ended, with the hooks that it was run with, or one that has never begun.
func (l layout) remove(ctx context.Context, id string, w Environment) (err error) {
	logger := newLogger(false, w)
	lock, err := l.lock(id, logger)
	if errors.Is(err, state.ErrInUse) {
		return l.errRunning(id)
	}
	if err != nil {
		return l.unreadable(id, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if lock.Saved() == nil && l.answers(ctx, id) {
		return l.errRunning(id)
	}
	if lock.Saved() != nil && lock.Saved().Terminal && allocrunner.TasksRunning(l.Alloc(id)) {
		return fmt.Errorf("allocation %s has ended, but tasks of it are still running: '%s' kills them", id, l.Command("stop", id))
	}
	settings, _ := l.remembered(id) // the defaults with an error, which is no reason to keep the allocation
	err = lock.Destroy(ctx, agent.Hooks(agentConfig(l, id, lock, logger, settings, nil, nil, w))...)
	if errors.Is(err, interfaces.ErrNotTerminal) {
		return fmt.Errorf("allocation %s: %w: '%s' stops it", id, interfaces.ErrNotTerminal, l.Command("stop", id))
	}
	return err
}
