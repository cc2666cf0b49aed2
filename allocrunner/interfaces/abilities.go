package interfaces

import (
	"context"

	"github.com/hashicorp/nomad/api"
)

// These interfaces are abilities that an AllocRunner may have beside its methods. A caller asks for one by a type
// assertion.

// Deployer is a runner that has deployments.
type Deployer interface {
	// Deployments returns the deployments of the job's latest versions, the latest first. They are shared and not
	// changed. A caller who has seen a version of the allocation also sees that version's changes of the deployments.
	Deployments() []*api.Deployment
	// FailDeployment ends a deployment that runs as failed. The allocation runs on.
	FailDeployment(id string)
	// SetHealth decides whether the allocation is healthy with the present version of its job. That ends the
	// deployment.
	SetHealth(healthy bool)
}

// Toucher is a runner that can make a version of the allocation without a change.
type Toucher interface {
	// Touch makes another version of the allocation, so that its event can carry news from outside of it. Touch reports
	// false if the allocation has ended, and then makes none.
	Touch() bool
}

// Validator is a runner that can judge another version of the job without applying it.
type Validator interface {
	// Validate returns the error that Update would return for a version of the job that can be applied in place.
	// Errors: ErrInvalidJob.
	Validate(job *api.Job) error
}

// TaskUpdater is a runner that can apply a version of the job with new processes of some tasks.
type TaskUpdater interface {
	// UpdateTasks stops the processes of these tasks, applies another version of the job as Update does, and starts the
	// tasks again in the group's order. The other tasks run on. It returns when the version is applied. With an error, the
	// tasks start again with the version before: Update's, and *DestructiveError if restarts of these tasks don't suffice.
	UpdateTasks(ctx context.Context, job *api.Job, tasks []string) error
}

// HookCounter is a runner that counts the calls of its hooks.
type HookCounter interface {
	HookStats() []HookStat
}
