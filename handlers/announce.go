package handlers

import (
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// announce makes events of what has happened beside the allocation, with its next version, which it has made.
func (a *API) announce(allocID string, notes ...note) {
	if a.config.Events == nil {
		return
	}
	a.config.Events.add(notes...)
	found, _ := a.config.Allocs.Get(allocID)
	if alloc, ok := found.(interfaces.Toucher); !ok || !alloc.Touch() {
		a.config.Events.flush()
	}
}

// announceEvaluation makes events of an evaluation, and of the end of its job.
func (a *API) announceEvaluation(e *api.Evaluation, of *api.Allocation) {
	notes := evaluationNotes(e)
	if e.TriggeredBy == triggerDeregister && of.Job != nil {
		job := jobNow(of)
		job.Stop = new(true)
		notes = append([]note{jobNote(eventDeregistered, job, of)}, notes...)
	}
	a.announce(of.ID, notes...)
}
