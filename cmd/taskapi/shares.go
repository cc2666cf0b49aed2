package main

import (
	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/socket"
)

const (
	// maxConnections caps the connections of all sockets together. Each costs some 20 KiB; a task seldom has more than a handful.
	maxConnections = 1024
	// operatorConnections are the operator's, whatever the tasks have open.
	operatorConnections = 32
	// taskConnections are each task's, or as many as half of all comes to for each.
	taskConnections = 16
)

// shares are what each socket has of the connections. All are made before the first is opened: those of a task that has yet to start, too.
type shares map[auth.Owner]*socket.Share

func newShares(allocID string, group *api.TaskGroup) shares {
	all, budget := shares{}, socket.NewBudget(maxConnections)
	all[auth.Owner{AllocationID: allocID}] = budget.Share(operatorConnections)
	for _, task := range group.Tasks {
		all[auth.Owner{AllocationID: allocID, Task: task.Name}] = budget.Share(guarantee(len(group.Tasks)))
	}
	return all
}

// guarantee is how many connections each of so many tasks has for itself.
func guarantee(tasks int) int {
	return max(1, min(taskConnections, maxConnections/2/tasks))
}
