package handlers

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
)

// Jobs goes on with another version of the job that runs. The errors of its methods are *apierror.Error, wrapped or not: Invalid
// for a job that can't run here, OtherJob for one of another ID. The Message of each is what the client reads.
type Jobs interface {
	// Register makes the running allocation go on with the job, which is as the client sent it, canonical or not. With force, what
	// can't be done in place is done at the cost of new processes; without it that is a Conflict, whose Message names the changes, and
	// nothing has changed then. It is not called twice at once.
	Register(ctx context.Context, job *api.Job, force bool) (Registration, error)
	// Plan says what Register would do, and does nothing.
	Plan(ctx context.Context, job *api.Job) (Plan, error)
}

// Registration is what became of a job.
type Registration struct {
	Index    uint64 // the job's JobModifyIndex; the old one when nothing differed
	Warnings string // for people; empty for none
}

// Plan is what would become of a job.
type Plan struct {
	Changes  []JobChange // none when nothing differs
	Warnings string
}

// JobChange is one difference between the job that runs and another version of it.
type JobChange struct {
	Path    string // `group "web" > task "server" > kill_timeout`
	InPlace bool   // the running allocation can take it over
	Text    string // what changes from what to what
}

// maxJob is the ceiling of a job's body. The job files of Nomad's own users stay below 100 KB; templates inside them may be longer.
const maxJob = 1 << 20

// wireRegistered is Nomad's answer to a registration.
type wireRegistered struct {
	EvalID          string
	EvalCreateIndex uint64
	JobModifyIndex  uint64
	Warnings        string
	Index           uint64
	LastContact     int
	KnownLeader     bool
	NextToken       string
}

// register is PUT /v1/jobs: the running allocation goes on with another version of its job. force=true is not Nomad's: it allows
// changes that need new processes.
func (a *API) register(ctx context.Context, r *request) (answer, error) {
	query, err := r.values()
	if err != nil {
		return answer{}, err
	}
	force, err := flag(query, "force", false)
	if err != nil {
		return answer{}, err
	}
	var want api.JobRegisterRequest
	if err := a.jobBody(r, &want, func() *api.Job { return want.Job }); err != nil {
		return answer{}, err
	}
	select { // one at a time, so that the index which a client enforces is still that of the job when it is replaced
	case a.registering <- struct{}{}:
		defer func() { <-a.registering }()
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
	if err := r.recheck(); err != nil {
		return answer{}, err
	}
	if err := a.enforceIndex(r, &want); err != nil {
		return answer{}, err
	}
	registered, err := a.config.Jobs.Register(ctx, want.Job, force)
	if err != nil {
		return answer{}, fmt.Errorf("register: %w", err)
	}
	encoded, err := encode(wireRegistered{
		EvalID: a.evaluated("job-register", r), EvalCreateIndex: registered.Index, JobModifyIndex: registered.Index,
		Warnings: registered.Warnings, Index: registered.Index,
	})
	return answer{body: encoded, index: registered.Index}, err
}

// jobBody reads a request with a job in it. Without Jobs there is no such route.
func (a *API) jobBody(r *request, into any, job func() *api.Job) error {
	if a.config.Jobs == nil {
		return apierror.New(apierror.NoRoute)
	}
	if err := r.decode(into, false); err != nil {
		return err
	}
	switch {
	case job() == nil:
		return apierror.New(apierror.JobMissing)
	case valueOf(job().ID) == "":
		return apierror.New(apierror.JobWithoutID)
	}
	return nil
}

// enforceIndex refuses a job that was made from another version than the one that runs, in Nomad's words.
func (a *API) enforceIndex(r *request, want *api.JobRegisterRequest) error {
	if !want.EnforceIndex {
		return nil
	}
	index := a.jobModifyIndex(r)
	switch {
	case want.JobModifyIndex == 0:
		return apierror.New(apierror.EnforcedMissing)
	case want.JobModifyIndex != index:
		return apierror.New(apierror.EnforcedIndex, want.JobModifyIndex, index)
	}
	return nil
}

// jobModifyIndex is that of the job which the caller's allocation runs, 0 when there is none.
func (a *API) jobModifyIndex(r *request) uint64 {
	alloc, ok := r.visible()
	if !ok {
		return 0
	}
	if job := alloc.Snapshot().Job; job != nil {
		return valueOf(job.JobModifyIndex)
	}
	return 0
}
