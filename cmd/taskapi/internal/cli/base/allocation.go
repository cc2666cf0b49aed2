package base

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/handlers/allocations"
	"taskapi/internal/slice"
)

const CheckSuccess = "success"

// Checks returns the latest results of the allocation's checks, as its taskapi answers them or as they were saved.
func (t Target) Checks(ctx context.Context) (checks api.AllocCheckStatuses, err error) {
	err = t.Ask(ctx, func(_ *client.Client, sdk *api.Client) error {
		checks, err = sdk.Allocations().Checks(t.ID, (&api.QueryOptions{}).WithContext(ctx))
		return err
	})
	if err == nil {
		return checks, nil
	}
	found, locateErr := t.Locate(ctx)
	if locateErr != nil || found.Saved == nil {
		return nil, err
	}
	if found.Saved.Checks == nil {
		return api.AllocCheckStatuses{}, nil
	}
	return found.Saved.Checks, nil
}

// SortedChecks returns the results by service and check.
func SortedChecks(checks api.AllocCheckStatuses) []api.AllocCheckStatus {
	return slices.SortedFunc(maps.Values(checks), func(a, b api.AllocCheckStatus) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Check, b.Check), cmp.Compare(a.ID, b.ID))
	})
}

// HealthOf returns the health of an allocation in a word, and whether it is known.
func HealthOf(alloc *api.Allocation) (string, bool) {
	if alloc.DeploymentStatus == nil || alloc.DeploymentStatus.Healthy == nil {
		return "", false
	}
	if *alloc.DeploymentStatus.Healthy {
		return "healthy", true
	}
	return "unhealthy", true
}

// TaskNames returns the names of an allocation's tasks in the order of the job.
func TaskNames(alloc *api.Allocation) []string {
	if alloc == nil || alloc.Job == nil || interfaces.IsParent(alloc.Job) {
		return nil
	}
	return slice.Map(alloc.GetTaskGroup().Tasks, func(t *api.Task) string { return t.Name })
}

// RunningTasks returns the names of the tasks that ran when the allocation was last saved.
func RunningTasks(alloc *api.Allocation) []string {
	return slices.DeleteFunc(TaskNames(alloc), func(task string) bool {
		state := alloc.TaskStates[task]
		return state == nil || state.State != "running"
	})
}

// Locate returns the allocation as its taskapi answers it, or else as it was last saved. Errors: why there is neither.
func (t Target) Locate(ctx context.Context) (found client.Location, err error) {
	c := t.Client()
	defer c.Close()
	switch found = c.Locate(ctx, client.Brief); found.Holder {
	case client.Nobody, client.Ended:
		found.Body, err = allocations.Encode(found.Alloc)
		return found, err
	}
	return found, t.ErrUnserved(found)
}

// LastEvent returns a task's latest event of some types, nil for none.
func LastEvent(state *api.TaskState, types ...string) *api.TaskEvent {
	if state == nil {
		return nil
	}
	for _, e := range slices.Backward(state.Events) {
		if slices.Contains(types, e.Type) {
			return e
		}
	}
	return nil
}

// TaskExitCode returns the exit code that a shell gives for the end of a task's process.
func TaskExitCode(e *api.TaskEvent) int {
	if sig, _ := strconv.Atoi(e.Details["signal"]); sig != 0 {
		return ExitSignalled + sig
	}
	code, _ := strconv.Atoi(e.Details["exit_code"])
	return code
}
