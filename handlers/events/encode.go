package events

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers/internal/evaluations"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
)

// wirePayload has one field set, the object of the event, or those of a variable.
type wirePayload struct {
	Allocation *wire.Allocation `json:",omitempty"`
	Evaluation any              `json:",omitempty"`
	Deployment *wire.Deployment `json:",omitempty"`
	Job        *wire.Job        `json:",omitempty"`
	Node       *wire.Node       `json:",omitempty"`

	Service *api.ServiceRegistration `json:",omitempty"`

	Deleted  *bool                 `json:",omitempty"` // beside the Metadata of a variable
	Metadata *api.VariableMetadata `json:",omitempty"`
}

// encodedEvent is the line of an event, and its parts for subscribers who get only some of them.
type encodedEvent struct {
	keyID string // the signing key that is shown in it
	index uint64
	parts []encodedPart
	line  []byte
}

// encodedPart is a note and its JSON. It has the payload only of a job, of which each caller is shown its own.
type encodedPart struct {
	note
	bytes []byte
}

// encode returns the event's line. Those of the latest events are kept, for all streams.
func (c Config) encode(e *event) (*encodedEvent, error) {
	keyID := c.KeyID()
	if kept := e.encoded.Load(); kept != nil && kept.keyID == keyID {
		return kept, nil
	}
	line := &encodedEvent{keyID: keyID, index: e.alloc.ModifyIndex}
	notes := notesOf(e, keyID)
	if e.arrives {
		if n, err := c.Node(e.alloc); err == nil { // else nothing is known of it
			notes = append([]note{nodeNote(n)}, notes...)
		}
	}
	for _, n := range notes {
		n.Index = line.index
		encoded, err := json.Marshal(n)
		if err != nil {
			return nil, fmt.Errorf("encode event of %s: %w", n.Topic, err)
		}
		n.Payload = wirePayload{Job: n.Payload.Job}
		line.parts = append(line.parts, encodedPart{n, encoded})
	}
	line.line = line.join(line.parts)
	e.encoded.Store(line)
	return line, nil
}

// join returns a line with some of the events of an index.
func (l *encodedEvent) join(parts []encodedPart) []byte {
	line := fmt.Appendf(nil, `{"Index":%d,"Events":[`, l.index)
	for i, part := range parts {
		if i > 0 {
			line = append(line, ',')
		}
		line = append(line, part.bytes...)
	}
	return append(line, "]}"...)
}

// lineFor returns the line for a subscription, nil when nothing is in it. A job, of which there are few, is encoded for
// each subscriber who is not shown all of it.
func (l *encodedEvent) lineFor(want *subscription) ([]byte, error) {
	wanted := slices.DeleteFunc(slices.Clone(l.parts), func(p encodedPart) bool { return !want.matches(p.note) })
	if len(wanted) == 0 {
		return nil, nil
	}
	whole := len(wanted) == len(l.parts)
	for i, part := range wanted {
		job := part.Payload.Job
		if job == nil || want.caller.SeesWholeJob() {
			continue
		}
		whole = false
		part.Payload.Job = wire.JobOf(route.ShownJob(want.caller, job.Job))
		encoded, err := json.Marshal(part.note)
		if err != nil {
			return nil, fmt.Errorf("encode event of %s: %w", part.Topic, err)
		}
		wanted[i].bytes = encoded
	}
	if whole {
		return l.line, nil
	}
	return l.join(wanted), nil
}

// notesOf returns all notes of an event, in the order in which Nomad has them happen.
func notesOf(e *event, keyID string) []note {
	var all []note
	if job := e.alloc.Job; e.job && job != nil {
		all = append(all, jobNote(eventRegistered, wire.JobNow(e.alloc), e.alloc))
		if e.begins && e.alloc.EvalID != "" {
			all = append(all, evaluationNotes(evaluations.Placement(e.alloc))...)
		}
	}
	for _, c := range e.services {
		if s := c.Value(); s != nil {
			all = append(all, serviceNote(s, c.Gone))
		}
	}
	all = append(all, e.notes...)
	if e.kind == "" {
		return all
	}
	alloc := wire.AllocationOf(e.alloc, keyID)
	alloc.Job = nil // Nomad leaves it out
	filterKeys := []string{alloc.JobID}
	if alloc.DeploymentID != "" {
		filterKeys = append(filterKeys, alloc.DeploymentID)
	}
	return append(all, note{
		Topic: api.TopicAllocation, Type: e.kind, Key: alloc.ID, FilterKeys: filterKeys, Namespace: alloc.Namespace,
		Payload: wirePayload{Allocation: alloc},
	})
}

func jobNote(kind string, job *api.Job, alloc *api.Allocation) note {
	return note{
		Topic: api.TopicJob, Type: kind, Key: alloc.JobID, Namespace: alloc.Namespace,
		Payload: wirePayload{Job: wire.JobOf(job)},
	}
}

// evaluationNotes returns the two events of an evaluation: the pending one, which is named after its trigger, and the
// completed one.
func evaluationNotes(e *api.Evaluation) []note {
	pending := *e
	pending.Status, pending.QueuedAllocations, pending.PlanAnnotations = api.EvalStatusPending, nil, nil
	pending.SnapshotIndex, pending.DeploymentID = 0, ""
	cause := eventDesired
	switch e.TriggeredBy {
	case evaluations.TriggerRegister:
		cause = eventRegistered
	case evaluations.TriggerDeregister:
		cause = eventDeregistered
	}
	of := func(kind string, e *api.Evaluation) note {
		return note{
			Topic: api.TopicEvaluation, Type: kind, Key: e.ID, Namespace: e.Namespace,
			FilterKeys: []string{e.JobID, e.DeploymentID},
			Payload:    wirePayload{Evaluation: wire.Sparse(e)},
		}
	}
	return []note{of(cause, &pending), of(eventEvaluated, e)}
}

func nodeNote(n *wire.Node) note {
	payload := wirePayload{Node: n}
	return note{Topic: api.TopicNode, Type: eventNode, Key: n.ID, needs: auth.NodeRead, Payload: payload}
}

func serviceNote(s *api.ServiceRegistration, gone bool) note {
	kind := eventService
	if gone {
		kind = eventServiceGone
	}
	return note{
		Topic: api.TopicService, Type: kind, Key: s.ID, Namespace: s.Namespace,
		FilterKeys: []string{s.JobID, s.ServiceName}, Payload: wirePayload{Service: s},
	}
}

func deploymentNote(d *api.Deployment) note {
	kind := eventDeployment
	if d.CreateIndex == d.ModifyIndex {
		kind = eventPlanned
	}
	return note{
		Topic: api.TopicDeployment, Type: kind, Key: d.ID, FilterKeys: []string{d.JobID}, Namespace: d.Namespace,
		Payload: wirePayload{Deployment: wire.DeploymentOf(d)},
	}
}
