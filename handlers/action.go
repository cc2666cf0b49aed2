package handlers

import (
	"context"
	"net/url"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/handlers/apierror"
)

// jobAction is an action of a job as Nomad lists it.
type jobAction struct {
	api.Action
	TaskName      string
	TaskGroupName string
}

// readActions is GET /v1/job/:job/actions.
func readActions(alloc *api.Allocation) any {
	list := []jobAction{}
	for _, task := range groupOf(alloc).Tasks {
		for _, action := range task.Actions {
			list = append(list, jobAction{*action, task.Name, alloc.TaskGroup})
		}
	}
	return list
}

// action answers GET /v1/job/:job/action: a WebSocket to the command of an action, in the task that has it. task may be left out when one has.
func (a *API) action(ctx context.Context, r *request) (answer, error) {
	current, err := a.ownJob(ctx, r)
	if err != nil {
		return answer{}, err
	}
	query, err := r.values()
	if err != nil {
		return answer{}, err
	}
	if id := query.Get("allocID"); id != "" && !strings.EqualFold(id, current.ID) {
		if err := checkUUID("allocation", id); err != nil {
			return answer{}, err
		}
		return answer{}, apierror.New(apierror.NoAllocOnClient, id)
	}
	task, action, err := findAction(current, query.Get("task"), query.Get("action"))
	if err != nil {
		return answer{}, err
	}
	alloc, ok := r.visible()
	if !ok {
		return answer{}, apierror.New(apierror.NoJob)
	}
	return a.execAnswer(r, alloc, interfaces.ExecRequest{Task: task, Command: append([]string{action.Command}, action.Args...)})
}

// actionDetail adds the task and the action of a query.
func actionDetail(record auth.Record, _ *request, query url.Values) auth.Record {
	if name := query.Get("action"); name != "" {
		return record.Runs(query.Get("task"), "action "+name)
	}
	return record
}

// findAction returns the action of that name, and the task that has it. An empty task is the one that does.
func findAction(alloc *api.Allocation, task, name string) (string, *api.Action, error) {
	if task != "" && taskOf(alloc, task) == nil {
		return "", nil, apierror.New(apierror.NoTask)
	}
	var found *api.Action
	var owners, others []string
	for _, t := range groupOf(alloc).Tasks {
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
		return "", nil, invalid("must provide task name: the tasks %s have an action %s", strings.Join(owners, ", "), clip(name))
	case len(others) == 0:
		return "", nil, apierror.New(apierror.NoAction, clip(name), where, "it has none")
	}
	return "", nil, apierror.New(apierror.NoAction, clip(name), where, "there is "+strings.Join(others, ", "))
}
