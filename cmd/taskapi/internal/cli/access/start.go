package access

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"syscall"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/client"
)

func Start(w base.Environment) *cobra.Command {
	var at base.TargetFlags
	var force, detach bool
	cmd := &cobra.Command{
		Use:   "start [flags] [ALLOC] [TASK...]",
		Short: "Start tasks that were stopped",
		Long: `Starts tasks that 'taskapi stop ALLOC TASK' has stopped, in the order of their group. Without TASK, it starts
every task of the allocation that was stopped.

It prints the events, and returns when the tasks have started. A task with a schedule follows it again; --force runs the
task outside of its times, too, until the next start or stop.

` + base.TaskArgs + `

Exit code: 0 when the tasks run, 1 when one of them does not.`,
		Example: `  taskapi start hello greeter
  taskapi start hello`,
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := at.FindTasks(cmd.Context(), args)
			if err == nil && found[0].Task == "" {
				whole := found[0]
				if found, err = stoppedTasks(cmd.Context(), whole); err == nil && len(found) == 0 {
					return w.Printf("no task of %s is stopped\n", whole)
				}
			}
			if err != nil {
				return err
			}
			state := "scheduled"
			if force {
				state = "run"
			}
			return pausing{w, state, detach}.all(cmd.Context(), found, base.Target.StartRank)
		},
	}
	at.Add(cmd, w, base.ToChangeTasks)
	cmd.Flags().BoolVar(&force, "force", false, "run a task whatever its schedule says")
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "return when it is saved that the tasks are to run")
	return cmd
}

// stoppedTasks returns the tasks of an allocation that an operator has stopped.
func stoppedTasks(ctx context.Context, t base.Target) (all []base.Target, err error) {
	alloc, err := present(ctx, t)
	if err != nil {
		return nil, err
	}
	for _, t.Task = range base.TaskNames(alloc) {
		if interfaces.ShownSchedule(alloc.TaskStates[t.Task]) == interfaces.ScheduleForcedPause {
			all = append(all, t)
		}
	}
	return all, nil
}

// StopTasks stops tasks of an allocation until they are started.
func StopTasks(ctx context.Context, w base.Environment, tasks []base.Target, detach bool) error {
	return pausing{w, "pause", detach}.all(ctx, tasks, base.Target.StopRank)
}

// pausing stops or starts tasks.
type pausing struct {
	environment base.Environment
	state       string // in the API's words
	detach      bool
}

// all changes the tasks of each rank at once, those of a lower rank before the others.
func (p pausing) all(ctx context.Context, tasks []base.Target, rank func(base.Target) int) error {
	ctx, release := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer release()
	tasks = slices.SortedStableFunc(slices.Values(tasks), func(a, b base.Target) int { return rank(a) - rank(b) })
	for len(tasks) > 0 {
		n := 1
		for n < len(tasks) && rank(tasks[n]) == rank(tasks[0]) {
			n++
		}
		if err := p.some(ctx, tasks[:n]); err != nil {
			return err
		}
		tasks = tasks[n:]
	}
	return nil
}

func (p pausing) some(ctx context.Context, tasks []base.Target) error {
	first := tasks[0]
	first.Task = ""
	f := &follow.Follower{Target: first, W: p.environment, Quiet: true}
	before, err := present(ctx, first)
	if err != nil {
		return err
	}
	f.Show(before)
	var names []string // of the tasks to wait for
	for _, t := range tasks {
		was := interfaces.ShownSchedule(before.TaskStates[t.Task])
		var now *api.Allocation
		err := t.Ask(ctx, func(c *client.Client, sdk *api.Client) (err error) {
			err = sdk.Allocations().SetPauseState(before, (&api.QueryOptions{}).WithContext(ctx), t.Task, p.state)
			if err == nil {
				now, _, err = c.Allocation(ctx)
			}
			return err
		})
		if err != nil {
			return err
		}
		switch why := t.WhyPaused(now); {
		case p.state == "pause" && was == interfaces.ScheduleForcedPause:
			f.Printer.AllocEvent("Stopping", t.String()+" was stopped before")
		case p.state == "pause", was.Pauses():
			names = append(names, t.Task)
		case why != "":
			return fmt.Errorf("%s does not run: %s", t, why)
		default:
			f.Printer.AllocEvent("Starting", t.String()+" was not stopped")
		}
	}
	switch {
	case p.detach:
		return nil
	case p.state != "pause":
		return f.AwaitStarted(ctx, before, names)
	}
	f.Until = func(now *api.Allocation) bool { return !slices.ContainsFunc(names, stops(now)) }
	_, err = f.Follow(ctx)
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: tasks are still being stopped; this command waits no longer", f.Target)
	}
	return err
}

// stops returns a function that reports whether a task is to be stopped, and has a process yet.
func stops(now *api.Allocation) func(task string) bool {
	return func(task string) bool {
		state := now.TaskStates[task]
		return interfaces.ShownSchedule(state).Pauses() && state.State == "running"
	}
}
