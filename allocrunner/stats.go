package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/internal/proctree"
	"taskapi/allocrunner/internal/stats"
)

func (r *Runner) Stats(ctx context.Context, interval time.Duration) (<-chan *api.AllocResourceUsage, error) {
	return r.stats.Stream(ctx, interval)
}

// measuredTasks returns the tasks that have a process, and when the others that had one lost it.
func (r *Runner) measuredTasks(ctx context.Context) (stats.Tasks, error) {
	tasks := stats.Tasks{Ended: map[string]time.Time{}, Measured: map[string]*api.TaskResourceUsage{}}
	if supervisor := r.resources.measured.Load(); supervisor != nil {
		view, list, err := supervisor.View(ctx)
		if err != nil && !errors.Is(err, drivers.ErrClosed) && !errors.Is(err, drivers.ErrLost) { // else nothing runs
			return tasks, err
		}
		tasks.View = view
		for _, s := range list {
			if s.Exit != nil {
				tasks.Ended[s.Task] = s.Exit.At
			}
		}
	}
	for _, t := range r.tasks {
		if run, ok := t.Latest().(drivers.Measurer); ok && t.State().Phase == lifecycle.Running {
			usage, err := run.Stats(ctx)
			if err != nil {
				return tasks, fmt.Errorf("task %q: %w", t.Name(), err)
			}
			tasks.Measured[t.Name()] = usage
		}
	}
	for name, state := range r.Alloc().TaskStates {
		_, known := tasks.Ended[name]
		runs := slices.ContainsFunc(tasks.View.Roots, func(root proctree.ViewRoot) bool { return root.Task == name })
		if !known && !runs && tasks.Measured[name] == nil && !state.StartedAt.IsZero() {
			tasks.Ended[name] = state.FinishedAt
		}
	}
	return tasks, nil
}
