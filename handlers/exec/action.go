package exec

import (
	"context"
	"net/url"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
)

// action answers GET /v1/job/:job/action: a WebSocket to the command of an action, in the task that has it. task may be
// left out when one has.
func (h *handlers) action(ctx context.Context, r *route.Request) (route.Answer, error) {
	current, err := r.OwnJob(ctx)
	if err != nil {
		return route.Answer{}, err
	}
	query := r.Query()
	if id := query.Get("allocID"); id != "" && !strings.EqualFold(id, current.ID) {
		if err := route.CheckUUID("allocation", id); err != nil {
			return route.Answer{}, err
		}
		return route.Answer{}, apierror.New(apierror.NoAllocOnClient, id)
	}
	task, action, err := findAction(current, query.Get("task"), query.Get("action"))
	if err != nil {
		return route.Answer{}, err
	}
	alloc, ok := r.Visible()
	if !ok {
		return route.Answer{}, apierror.New(apierror.NoJob)
	}
	return h.run(r, alloc, interfaces.ExecRequest{
		Task: task, Command: append([]string{action.Command}, action.Args...), Interpolate: true,
	})
}

// actionDetail adds the task and the action of a query.
func actionDetail(record auth.Record, _ string, query url.Values) auth.Record {
	if name := query.Get("action"); name != "" {
		return record.Runs(query.Get("task"), "action "+name)
	}
	return record
}

// findAction returns the action of that name, and the task that has it. Without a task, it looks in all.
func findAction(alloc *api.Allocation, task, name string) (string, *api.Action, error) {
	if task != "" && wire.OwnTask(alloc, task) == nil {
		return "", nil, apierror.New(apierror.NoTask)
	}
	var found *api.Action
	var owners, others []string
	for _, t := range wire.OwnGroup(alloc).Tasks {
		for _, action := range t.Actions {
			switch {
			case task != "" && t.Name != task:
			case action.Name == name:
				found = action
				owners = append(owners, t.Name)
			default:
				others = append(others, action.Name)
			}
		}
	}
	where := "the allocation"
	if task != "" {
		where = "task " + task
	}
	switch {
	case len(owners) == 1:
		return owners[0], found, nil
	case len(owners) > 1:
		return "", nil, route.Invalid("must provide task name: the tasks %s have an action %s",
			strings.Join(owners, ", "), route.Clip(name))
	case len(others) == 0:
		return "", nil, apierror.New(apierror.NoAction, route.Clip(name), where, "it has none")
	}
	return "", nil, apierror.New(apierror.NoAction, route.Clip(name), where, "there is "+strings.Join(others, ", "))
}
