package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"taskapi/allocrunner"
	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/internal/slice"
)

func GC(w base.Environment) *cobra.Command {
	var at base.TargetFlags
	var all, sticky bool
	cmd := &cobra.Command{
		Use:        "gc [flags] [ALLOC...]",
		SuggestFor: []string{"prune", "purge", "clean", "cleanup", "system"},
		Aliases:    []string{"rm"},
		Short:      "Remove ended allocations with their directories",
		Long: `Removes allocations that have ended, with their directories, logs and state. The name of a job, or of an
allocation (JOB.GROUP[N]), means all of this name that have ended.

An allocation that has not ended is refused and stays as it is. So does one with sticky data (ephemeral_disk) that no
other allocation has taken, unless --sticky removes it with the data. --all also removes the temporary directories that
a killed 'taskapi dev' or 'taskapi test' of this user has left, once nothing runs in them.`,
		Example: `  taskapi gc 115ef685
  taskapi gc shop
  taskapi gc --sticky shop
  taskapi gc --all`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case !at.Given(args) && !all:
				return base.Usagef("ALLOC is missing: taskapi gc [flags] ALLOC..., or --all for every allocation that has ended")
			case at.Given(args) && all:
				return base.Usagef("--all removes every allocation that has ended: leave out ALLOC, or --all")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := named(cmd.Context(), w, &at, args)
			if all {
				found, err = ended(w, at.DataDir)
			}
			errs := []error{err}
			for _, t := range found {
				err := remove(cmd.Context(), t, sticky, w)
				if all {
					err = printKept(err, w)
				}
				errs = append(errs, err)
			}
			if all {
				for _, dir := range start.RemoveLeft(w, start.IsOver) {
					fmt.Fprintf(w.Stdout, "removed %s\n", dir)
				}
			}
			return errors.Join(errs...)
		},
	}
	at.Add(cmd, w, base.ToRemove)
	cmd.ValidArgsFunction = base.CompleteEnded(&at.DataDir, w)
	cmd.Flags().BoolVar(&all, "all", false, "remove every allocation that has ended")
	cmd.Flags().BoolVar(&sticky, "sticky", false, "also remove sticky data that no other allocation has taken")
	return cmd
}

// named returns the allocations with these names, each once. An error means that nothing is to be done, unless it is a
// *base.NotRunningError: then it is about the other names.
func named(ctx context.Context, w base.Environment, at *base.TargetFlags, args []string) (
	found []base.Target, err error,
) {
	names, err := at.Names(args)
	for _, name := range names {
		all, findErr := base.FindEach(ctx, w, at.DataDir, []string{name}, at.Sought)
		if _, over := errors.AsType[*base.NotRunningError](findErr); over {
			err = errors.Join(err, findErr)
			continue
		}
		if findErr != nil {
			return nil, findErr
		}
		for _, t := range all {
			if !slices.ContainsFunc(found, func(other base.Target) bool {
				return other.ID == t.ID && other.Layout.Dir == t.Layout.Dir
			}) {
				found = append(found, t)
			}
		}
	}
	return found, err
}

// ended returns all allocations of this user's data directory whose saved state says that they have ended, and those
// that a killed process has left before they began. It removes the remains of earlier removals there.
func ended(w base.Environment, dataDir string) (found []base.Target, err error) {
	l, err := base.NewLayout(dataDir, w)
	if err != nil {
		return nil, err
	}
	ids, err := l.Ended()
	unbegun, unread := l.Unbegun()
	ids, err = append(ids, unbegun...), cmp.Or(err, unread)
	if len(ids) == 0 && err == nil {
		_, err = fmt.Fprintf(w.Stdout, "no allocation in %s has ended\n", l.Dir)
	}
	found = slice.Map(ids, func(id string) base.Target { return base.Target{Layout: l, ID: id} })
	return found, errors.Join(err, l.RemoveLeftovers())
}

// remove removes an allocation that has ended, and says so. Errors: interfaces.ErrSticky if it has sticky data, which
// only the flag removes.
func remove(ctx context.Context, t base.Target, sticky bool, w base.Environment) error {
	if saved, err := t.Layout.Peek(t.ID); !sticky && err == nil && saved != nil && saved.Terminal {
		if err := t.Layout.StickyLeft(saved.Alloc); err != nil {
			return fmt.Errorf("kept %s: %w; '%s' removes it with the data", t.ID, interfaces.ErrSticky,
				t.Layout.Command("gc", "--sticky", t.ID))
		}
	}
	if err := destroy(ctx, t, w); err != nil {
		return err
	}
	return w.Printf("removed %s\n", t.ID)
}

// printKept prints that an allocation keeps its sticky data, which is no error where it was not named to be removed.
func printKept(err error, w base.Environment) error {
	if errors.Is(err, interfaces.ErrSticky) {
		return w.Printf("%v\n", err)
	}
	return err
}

// destroy removes an allocation that has ended, with the hooks that it was run with, or one that has never begun.
func destroy(ctx context.Context, t base.Target, w base.Environment) (err error) {
	dir, stop := t.Layout.Alloc(t.ID), t.Layout.Command("stop", t.ID)
	running := fmt.Errorf("allocation %s is running: '%s' stops it", t.ID, stop)
	c := t.Client()
	defer c.Close()
	logger := base.NewLogger(false, w)
	lock, err := t.Layout.LockExisting(t.ID, logger)
	_, removed := errors.AsType[*datadir.RemovedError](err)
	switch {
	case removed: // by another process
		return nil
	case errors.Is(err, state.ErrInUse): // one that has ended is still there while a client reads its end
		switch {
		case c.Collect(ctx) == nil:
			return nil
		case state.Ended(t.Layout.State(t.ID)):
			return fmt.Errorf("allocation %s has just ended, and its taskapi has not exited yet: try again", t.ID)
		}
		return running
	case errors.Is(err, state.ErrDamaged), errors.Is(err, state.ErrNewer), errors.Is(err, state.ErrOlder):
		return fmt.Errorf("allocation %s may not have ended: %w\nto give it up, stop what still runs with '%s', then remove "+
			"the directory %s", t.ID, err, stop, dir)
	case err != nil:
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if lock.Saved() != nil && lock.Saved().Terminal && allocrunner.TasksRunning(dir) {
		return fmt.Errorf("allocation %s has ended, but tasks of it are still running: '%s' kills them", t.ID, stop)
	}
	settings, _ := t.Layout.Remembered(t.ID) // the defaults with an error, which is no reason to keep the allocation
	cfg := start.AgentConfig(t.Layout, t.ID, lock, logger, settings, &follow.Printer{}, nil, w)
	defer cfg.Cluster.Close()
	err = lock.Destroy(ctx, agent.Hooks(cfg)...)
	if errors.Is(err, interfaces.ErrNotTerminal) {
		return fmt.Errorf("allocation %s: %w: '%s' stops it", t.ID, interfaces.ErrNotTerminal, stop)
	}
	return err
}
