package start

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
)

// ExitCodeFrom stops an allocation once one of its tasks has ended for good. The command then exits as that task did.
type ExitCodeFrom struct {
	Task string // empty for none

	runner interfaces.AllocRunner // of the allocation, or of its latest replacement
}

// Check refuses a task that the allocation does not run.
func (f *ExitCodeFrom) Check(alloc *api.Allocation) error {
	switch {
	case f.Task == "":
		return nil
	case interfaces.IsParent(alloc.Job):
		return fmt.Errorf("--exit-code-from %s: job %q runs no task, but its children do", f.Task, alloc.JobID)
	}
	var tasks []string
	for _, t := range alloc.GetTaskGroup().Tasks {
		if t.Name == f.Task {
			return nil
		}
		tasks = append(tasks, t.Name)
	}
	return fmt.Errorf("--exit-code-from: group %q has no task %q, but %s", alloc.TaskGroup, f.Task,
		strings.Join(tasks, ", "))
}

// Stopping returns a factory of runners that stop when the task has ended, until ctx ends. It says why with say. One
// goroutine makes the runners and calls Result.
func (f *ExitCodeFrom) Stopping(ctx context.Context, next interfaces.Factory, say func(why string)) interfaces.Factory {
	if f.Task == "" {
		return next
	}
	return func(cfg interfaces.Config) (interfaces.AllocRunner, error) {
		runner, err := next(cfg)
		if err == nil {
			f.runner = runner
			go f.await(ctx, runner, say)
		}
		return runner, err
	}
}

// await stops a runner when the task has ended for another reason than that of a replacement, which runs it again.
func (f *ExitCodeFrom) await(ctx context.Context, runner interfaces.AllocRunner, say func(why string)) {
	for alloc := runner.Alloc(); ctx.Err() == nil; alloc = runner.Wait(ctx, alloc.ModifyIndex) {
		if !f.isDead(alloc) || interfaces.Replaced(alloc) {
			continue
		}
		if alloc.DesiredStatus != api.AllocDesiredStatusStop && !alloc.ClientTerminalStatus() {
			say(fmt.Sprintf("task %q has ended, and --exit-code-from names it", f.Task))
		}
		_ = runner.Stop(ctx, interfaces.StopRequest{}) // a stop that can't be saved stops, too
		return
	}
}

func (f *ExitCodeFrom) isDead(alloc *api.Allocation) bool {
	state := alloc.TaskStates[f.Task]
	return state != nil && state.State == "dead"
}

// Result returns the command's error: it has the exit code of the task if the task has ended, and otherwise is err.
func (f *ExitCodeFrom) Result(err error) error {
	if f.runner == nil || !f.isDead(f.runner.Alloc()) || err != nil && !errors.Is(err, agent.ErrReported) {
		return err
	}
	last := base.LastEvent(f.runner.Alloc().TaskStates[f.Task], api.TaskTerminated, api.TaskStarted)
	switch {
	case last == nil:
		return cmp.Or(err, fmt.Errorf("task %q never started", f.Task))
	case last.Type == api.TaskStarted:
		return cmp.Or(err, fmt.Errorf("nobody knows how task %q ended", f.Task))
	case base.TaskExitCode(last) == base.ExitOK:
		return nil
	}
	return base.ExitError{Code: base.TaskExitCode(last)}
}
