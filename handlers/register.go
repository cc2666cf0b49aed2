package handlers

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec/jobdiff"
	"taskapi/handlers/apierror"
)

// Jobs takes other versions of the allocation's job. Its methods return errors of a runner, or of the API: Invalid for a job that can't run here,
// OtherJob for one of another ID.
type Jobs interface {
	// Register gives the allocation the job, which is as the client sent it, canonical or not. For changes that need
	// new processes the allocation is replaced; without force they are an *interfaces.DestructiveError, and
	// nothing changes. It is not called twice at once. submission is the text that the job was made from; nil when the
	// client sent none.
	Register(ctx context.Context, job *api.Job, submission *api.JobSubmission, force bool) (Registration, error)
	// Plan returns what Register would do, and does nothing.
	Plan(ctx context.Context, job *api.Job) (Plan, error)
}

// Registration is the result of Register.
type Registration struct {
	Index    uint64 // the job's JobModifyIndex; the old one when nothing differed
	Warnings string // for people; empty for none

	// EvalID is the evaluation of an allocation that is to replace this one; empty for none. DeploymentID is the
	// deployment of the version; empty for none.
	EvalID, DeploymentID string
}

// Plan is the result of a plan.
type Plan struct {
	Changes  []jobdiff.Change // none when nothing differs
	Warnings string
}

// maxJob is the ceiling of a job's body. Job files seldom exceed 100 KB; templates inside them may be longer.
const maxJob = 1 << 20

// wireRegistered is Nomad's answer to a registration.
type wireRegistered struct {
	EvalID          string
	EvalCreateIndex uint64
	JobModifyIndex  uint64
	Warnings        string
	wireMeta
}

// wireMeta has the headers that some of Nomad's answers repeat in their bodies.
type wireMeta struct {
	Index       uint64
	LastContact int
	KnownLeader bool // false in answers to writes
	NextToken   string
}

// register answers PUT /v1/jobs and PUT /v1/job/:job: the allocation gets another version of its job. force=false,
// which Nomad does not have, refuses changes that need new processes.
func (a *API) register(ctx context.Context, r *request) (answer, error) {
	force, err := r.flag("force", true)
	if err != nil {
		return answer{}, err
	}
	var want api.JobRegisterRequest
	if err := a.jobBody(r, &want, func() *api.Job { return want.Job }); err != nil {
		return answer{}, err
	}
	if id := r.param("job"); id != "" && id != *want.Job.ID {
		return answer{}, apierror.New(apierror.JobMismatch)
	}
	return a.registerAs(ctx, r, registering{
		job: want.Job, submission: want.Submission, force: force, first: func() error { return a.enforceIndex(r, &want) },
	})
}

// registering is a version of the job that the allocation is to get.
type registering struct {
	job        *api.Job
	submission *api.JobSubmission
	force      bool
	first      func() error // returns why not, once no other registration can change that
}

// registerAs gives the allocation another version of its job.
func (a *API) registerAs(ctx context.Context, r *request, want registering) (answer, error) {
	select { // one at a time, so that the index which a client enforces does not change before its job is registered
	case a.registering <- struct{}{}:
		defer func() { <-a.registering }()
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
	if err := r.recheck(); err != nil {
		return answer{}, err
	}
	if err := want.first(); err != nil {
		return answer{}, err
	}
	before := a.jobModifyIndex(r)
	registered, err := a.config.Jobs.Register(ctx, want.job, want.submission, want.force)
	if err != nil {
		return answer{}, fmt.Errorf("register: %w", ofUpdate(err))
	}
	done := api.DesiredUpdates{InPlaceUpdate: 1}
	switch {
	case registered.EvalID != "":
		done = api.DesiredUpdates{DestructiveUpdate: 1}
	case registered.Index == before:
		done = api.DesiredUpdates{Ignore: 1}
	}
	encoded, err := encode(wireRegistered{
		EvalID: a.evaluated(r, done, registered), EvalCreateIndex: registered.Index, JobModifyIndex: registered.Index,
		Warnings: registered.Warnings, wireMeta: wireMeta{Index: registered.Index},
	})
	return answer{body: encoded, index: registered.Index}, err
}

// ofUpdate returns an error of a registration or a plan: AllocTerminal has words of its own there.
func ofUpdate(err error) error {
	return apierror.Reword(err, apierror.AllocTerminal, apierror.AllocEnding)
}

// jobBody decodes a request with a job. Without Jobs there is no such route.
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

// enforceIndex refuses a job that was made from another version than the present one.
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

// jobModifyIndex returns that of the caller's job, 0 without one.
func (a *API) jobModifyIndex(r *request) uint64 { return valueOf(a.jobOf(r).JobModifyIndex) }

// jobVersion returns the number of the present version of the caller's job.
func (a *API) jobVersion(r *request) uint64 { return valueOf(a.jobOf(r).Version) }

// jobOf returns the caller's job, an empty one when it has none.
func (a *API) jobOf(r *request) *api.Job {
	if alloc, ok := r.visible(); ok && alloc.Snapshot().Job != nil {
		return alloc.Snapshot().Job
	}
	return new(api.Job)
}
