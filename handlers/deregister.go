package handlers

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
)

// wireDeregistered is Nomad's answer to the end of a job.
type wireDeregistered struct {
	EvalID          string
	EvalCreateIndex uint64
	JobModifyIndex  uint64
	VolumeEvalID    string
	VolumeEvalIndex uint64
	wireMeta
}

// deregister answers DELETE /v1/job/:job: its allocation begins to stop, as by /v1/allocation/:id/stop, and the answer does not wait. With
// purge=true one that has ended is removed, as by /v1/client/allocation/:id/gc: a job is forgotten with its allocation's directory.
func (a *API) deregister(ctx context.Context, r *request) (answer, error) {
	hurry, err := r.flag("no_shutdown_delay", false)
	if err != nil {
		return answer{}, err
	}
	purge, err := r.flag("purge", false)
	if err != nil {
		return answer{}, err
	}
	if purge && r.unrecorded != nil { // a stop may be without a record, a removal may not
		return answer{}, r.unrecorded
	}
	if _, err := a.ownJob(ctx, r); err != nil {
		return answer{}, err
	}
	found, _ := r.visible()
	alloc, ok := found.(Stopper)
	if !ok {
		return answer{}, apierror.New(apierror.NoRoute)
	}
	if err := alloc.Stop(ctx, hurry); err != nil {
		return answer{}, fmt.Errorf("stop: %w", err)
	}
	if ended, ok := found.(Collector); ok && purge {
		if err := ended.Collect(ctx); err != nil && apierror.Of(err).Kind != apierror.NotCollectable {
			return answer{}, fmt.Errorf("collect: %w", err)
		}
	}
	current := alloc.Snapshot()
	encoded, err := encode(wireDeregistered{
		EvalID:          a.evaluations.add(triggerDeregister, current, api.DesiredUpdates{Stop: 1}),
		EvalCreateIndex: current.ModifyIndex, JobModifyIndex: valueOf(current.Job.JobModifyIndex),
		wireMeta: wireMeta{Index: current.ModifyIndex},
	})
	return answer{body: encoded, index: current.ModifyIndex}, err
}
