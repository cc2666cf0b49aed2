package events

import (
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/handlers/internal/evaluations"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
)

// announce adds notes to the events, and has the allocation make the version that carries them.
func (e *Log) announce(allocs route.Allocs, allocID string, notes ...note) {
	if e == nil {
		return
	}
	e.add(notes...)
	found, _ := allocs.Get(allocID)
	if alloc, ok := found.(interfaces.Toucher); !ok || !alloc.Touch() {
		e.flush()
	}
}

// AnnounceNode makes an event of the node after a change of it.
func (e *Log) AnnounceNode(allocs route.Allocs, current *api.Allocation, n *wire.Node) {
	e.announce(allocs, current.ID, nodeNote(n))
}

// AnnounceEvaluation makes events of an evaluation of the allocation, and of the end of its job.
func (e *Log) AnnounceEvaluation(allocs route.Allocs, made *api.Evaluation, of *api.Allocation) {
	notes := evaluationNotes(made)
	if made.TriggeredBy == evaluations.TriggerDeregister && of.Job != nil {
		job := wire.JobNow(of)
		job.Stop = new(true)
		notes = append([]note{jobNote(eventDeregistered, job, of)}, notes...)
	}
	e.announce(allocs, of.ID, notes...)
}
