package agent

import (
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/socket"
)

const (
	// operatorConnections are the operator's, whatever the tasks have open.
	operatorConnections = 32
	// taskConnections are each task's, or as many as half of all comes to for each.
	taskConnections = 16
)

// shares are what each socket has of the connections. All are made before the first is opened: those of a task that has yet to start, too.
type shares map[string]*socket.Share // by task; the operator's by the empty name

// newShares shares so many connections among the sockets of a group. Each costs some 20 KiB; a task seldom has more than a handful.
func newShares(group *api.TaskGroup, connections int) shares {
	all, budget := shares{}, socket.NewBudget(connections)
	all[""] = budget.Share(operatorConnections)
	for _, task := range group.Tasks {
		all[task.Name] = budget.Share(guarantee(len(group.Tasks), connections))
	}
	return all
}

// of returns the share of a task's socket, or the operator's. There is no socket without one: nothing would bound its connections.
func (s shares) of(owner auth.Owner) (*socket.Share, error) {
	share := s[owner.Task]
	if share == nil {
		return nil, fmt.Errorf("no connections are set aside for task %q", owner.Task)
	}
	return share, nil
}

// guarantee returns how many of the connections each of so many tasks has for itself.
func guarantee(tasks, connections int) int {
	return max(1, min(taskConnections, connections/2/tasks))
}
