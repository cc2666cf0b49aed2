package wire

import "github.com/hashicorp/nomad/api"

// Deployment adds what the SDK lacks.
type Deployment struct {
	*api.Deployment
	TaskGroups   map[string]*DeploymentState
	EvalPriority int
}

type DeploymentState struct {
	*api.DeploymentState
	AutoPromote bool
}

func DeploymentOf(d *api.Deployment) *Deployment {
	w := &Deployment{Deployment: d, TaskGroups: map[string]*DeploymentState{}}
	for name, state := range d.TaskGroups {
		w.TaskGroups[name] = &DeploymentState{DeploymentState: state}
	}
	return w
}
