package jobs

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/jobspec/jobdiff"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/evaluations"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
	"taskapi/internal/ptr"
)

// Registrar takes other versions of the allocation's job. Its methods return errors of a runner, or of the API: Invalid
// for a job that can't run here, OtherJob for one of another ID.
type Registrar interface {
	// Register gives the allocation the job in the client's form, canonical or not. Changes that need new processes are
	// an *interfaces.DestructiveError, and change nothing, unless the client allows what they need. It is not called
	// twice at once. submission is the text that the job was made from; nil when the client sent none.
	Register(ctx context.Context, job *api.Job, submission *api.JobSubmission, allowed Allowed) (Registration, error)
	// Plan returns what Register would do, and does nothing.
	Plan(ctx context.Context, job *api.Job) (Plan, error)
}

// Allowed is what a registration may do for changes that need new processes.
type Allowed struct {
	Restarts bool // restart the tasks whose parts of the job have changed, if that suffices
	Replace  bool // otherwise replace the allocation
}

// Registration is the result of Register.
type Registration struct {
	Index    uint64 // the job's JobModifyIndex; the old one when nothing differed
	Warnings string // for people; empty for none

	// EvalID is the evaluation of an allocation that will replace this one; empty for none. DeploymentID is the
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

type wireRegistered struct {
	EvalID          string
	EvalCreateIndex uint64
	JobModifyIndex  uint64
	Warnings        string
	wire.Meta
}

// register answers PUT /v1/jobs and PUT /v1/job/:job: the allocation gets another version of its job. force=false,
// which Nomad does not have, refuses changes that need a replacement. Nor has Nomad restart=true: if restarts of the
// changed tasks suffice, the other tasks run on.
func (h *handlers) register(ctx context.Context, r *route.Request, want *api.JobRegisterRequest) (route.Answer, error) {
	if err := checkJob(want.Job); err != nil {
		return route.Answer{}, err
	}
	if id := r.Param("job"); id != "" && id != *want.Job.ID {
		return route.Answer{}, apierror.New(apierror.JobMismatch)
	}
	return h.registerAs(ctx, r, want.Job, want.Submission, func() error { return enforceIndex(r, want) })
}

// registerAs gives the allocation another version of its job, unless first returns an error.
func (h *handlers) registerAs(
	ctx context.Context, r *route.Request, job *api.Job, submission *api.JobSubmission, first func() error,
) (route.Answer, error) {
	if err := r.TakeTurn(ctx, h.registering); err != nil {
		return route.Answer{}, err
	}
	defer h.registering.Release(1)
	if err := first(); err != nil {
		return route.Answer{}, err
	}
	before := ptr.Deref(jobOf(r).JobModifyIndex)
	registered, err := h.Registrar.Register(ctx, job, submission,
		Allowed{Restarts: r.Flag("restart", false), Replace: r.Flag("force", true)})
	if err != nil {
		return route.Answer{}, fmt.Errorf("register: %w", ofUpdate(err))
	}
	done := api.DesiredUpdates{InPlaceUpdate: 1}
	switch {
	case registered.EvalID != "":
		done = api.DesiredUpdates{DestructiveUpdate: 1}
	case registered.Index == before:
		done = api.DesiredUpdates{Ignore: 1}
	}
	made := uuid.NewString() // with its allocation gone, nobody could read it
	if alloc, ok := r.Visible(); ok {
		made = h.Evaluations.AddFor(evaluations.TriggerRegister, alloc.Snapshot(), done,
			registered.EvalID, registered.DeploymentID)
	}
	return route.Indexed(wireRegistered{
		EvalID: made, EvalCreateIndex: registered.Index, JobModifyIndex: registered.Index,
		Warnings: registered.Warnings, Meta: wire.Meta{Index: registered.Index},
	}, registered.Index)
}

// ofUpdate returns an error of a registration or a plan, in whose answers AllocTerminal has other words.
func ofUpdate(err error) error {
	return apierror.Reword(err, apierror.AllocTerminal, apierror.AllocEnding)
}

// checkJob returns an error for a body without a job, and for a job without an ID.
func checkJob(job *api.Job) error {
	switch {
	case job == nil:
		return apierror.New(apierror.JobMissing)
	case ptr.Deref(job.ID) == "":
		return apierror.New(apierror.JobWithoutID)
	}
	return nil
}

// enforceIndex refuses a job that was made from another version than the present one.
func enforceIndex(r *route.Request, want *api.JobRegisterRequest) error {
	if !want.EnforceIndex {
		return nil
	}
	index := ptr.Deref(jobOf(r).JobModifyIndex)
	switch {
	case want.JobModifyIndex == 0:
		return apierror.New(apierror.EnforcedMissing)
	case want.JobModifyIndex != index:
		return apierror.New(apierror.EnforcedIndex, want.JobModifyIndex, index)
	}
	return nil
}

// jobOf returns the caller's job, an empty one when it has none.
func jobOf(r *route.Request) *api.Job {
	if alloc, ok := r.Visible(); ok && alloc.Snapshot().Job != nil {
		return alloc.Snapshot().Job
	}
	return new(api.Job)
}

type wireDeregistered struct {
	EvalID          string
	EvalCreateIndex uint64
	JobModifyIndex  uint64
	VolumeEvalID    string
	VolumeEvalIndex uint64
	wire.Meta
}

// deregister answers DELETE /v1/job/:job: its allocation begins to stop, as by /v1/allocation/:id/stop, and the answer
// does not wait. purge=true removes an allocation that has ended, as by /v1/client/allocation/:id/gc: a job is
// forgotten with its allocation's directory.
func (h *handlers) deregister(ctx context.Context, r *route.Request) (route.Answer, error) {
	purge := r.Flag("purge", false)
	if purge && r.Unrecorded != nil { // a stop needs no record, a removal does
		return route.Answer{}, r.Unrecorded
	}
	if _, err := r.OwnJob(ctx); err != nil {
		return route.Answer{}, err
	}
	found, _ := r.Visible()
	alloc, ok := found.(interface {
		Stop(ctx context.Context, noShutdownDelay bool) error
	})
	if !ok {
		return route.Answer{}, apierror.New(apierror.NoRoute)
	}
	if err := alloc.Stop(ctx, r.Flag("no_shutdown_delay", false)); err != nil {
		return route.Answer{}, fmt.Errorf("stop: %w", err)
	}
	if purge {
		if err := r.Collect(ctx); err != nil {
			return route.Answer{}, err
		}
	}
	current := found.Snapshot()
	return route.Indexed(wireDeregistered{
		EvalID:          h.Evaluations.Add(evaluations.TriggerDeregister, current, api.DesiredUpdates{Stop: 1}),
		EvalCreateIndex: current.ModifyIndex, JobModifyIndex: ptr.Deref(current.Job.JobModifyIndex),
		Meta: wire.Meta{Index: current.ModifyIndex},
	}, current.ModifyIndex)
}
