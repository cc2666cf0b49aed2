package jobs

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/evaluations"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
	"taskapi/internal/ptr"
)

// wireDeregistered is Nomad's answer to the end of a job.
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
	if purge && r.Unrecorded != nil { // a stop may be without a record, a removal may not
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
