// Package events has the route of the event stream, and keeps its events: versions of the allocation, and the events of
// its job, evaluations, deployments, node and services.
package events

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/registry"
	"taskapi/auth"
	"taskapi/handlers/internal/evaluations"
)

// The bounds of the events that are kept for clients that connect late or read slowly.
const (
	// keptEvents is more than twice what Nomad keeps by default; a client that is away for a minute misses nothing.
	keptEvents = 256
	// keptStates bounds the task states and notes in all events together. The states of a group of 500 tasks have some
	// 2 KiB each: even when no two events share any, 8 MiB are held.
	keptStates = 4096
	// keptEncodings is how many of the latest events keep their JSON, for all streams. It may have a MiB.
	keptEncodings = 4
	// maxPending is how many notes wait for the next version of the allocation.
	maxPending = 64
)

// Nomad's types of events.
const (
	eventPlanned      = "PlanResult"                    // a placement, or another version of the job
	eventDesired      = "AllocationUpdateDesiredStatus" // it is to stop
	eventUpdated      = "AllocationUpdated"             // the state of its tasks has changed
	eventRegistered   = "JobRegistered"
	eventDeregistered = "JobDeregistered"
	eventEvaluated    = "EvaluationUpdated"
	eventDeployment   = "DeploymentStatusUpdate"
	eventNode         = "NodeRegistration"
	eventService      = "ServiceRegistration"
	eventServiceGone  = "ServiceDeregistration"
	eventVariable     = "VariableUpdated" // written, locked, unlocked or deleted
)

// Log keeps the latest events of allocations for GET /v1/event/stream. Each version of an allocation has an index of
// its own, which grows: a client that resumes after the last index that it has seen neither misses nor repeats a
// version. Other events have the index of the version before them. A client that was away may miss these, unless it
// resumes at the last index and knows what it has seen. Log never waits for a reader, starts no goroutine, and needs no
// closing.
type Log struct {
	mu      sync.Mutex // guards the fields below
	kept    []*event   // the oldest first
	first   uint64     // the number of kept[0]; events are numbered from 0 as they come
	states  int        // of all kept events, with their notes
	lost    uint64     // the highest index of which events may have been dropped
	begins  bool       // the next event is the first of the allocation's life
	pending []note     // what belongs to the next event

	deployments func() []*api.Deployment // of the allocation; nil for none
	deployed    uint64                   // the highest ModifyIndex of a deployment that an event has

	services Services        // nil for none
	serviced uint64          // the number of the first change of a service that no event has
	more     <-chan struct{} // closed when there is this change

	changed chan struct{} // closed and replaced with every new event
}

// event is one version of an allocation, with its cause and the other events of that moment.
type event struct {
	alloc   *api.Allocation
	kind    string // of the allocation's event; empty for none
	job     bool   // the job was registered with this version
	begins  bool   // the allocation was placed with this version
	arrives bool   // this process has begun with this version, and so its node

	services []*registry.Change // they come before the notes
	notes    []note

	encoded atomic.Pointer[encodedEvent] // nil for one that is not among the latest
}

// Services keeps the latest changes of registrations, numbered as they come. A registry.Feed does.
type Services interface {
	// Since returns the changes from a number on that are kept, the number of the next one, and what is closed when there
	// are more.
	Since(number uint64) (changes []*registry.Change, next uint64, more <-chan struct{})
	// Read says that somebody reads the changes from now on, until done is called.
	Read(ctx context.Context) (done func())
}

// note is an event other than a change of the allocation, such as an evaluation. The SDK's Event decodes it.
type note struct {
	Topic      api.Topic
	Type       string
	Key        string
	Namespace  string // empty for none
	FilterKeys []string
	Index      uint64 // the event's
	Payload    wirePayload

	needs auth.Capability // to see it; 0 for auth.ReadJob
}

// New returns an empty Log.
func New() *Log { return &Log{changed: make(chan struct{})} }

// Name identifies the sink in logs.
func (*Log) Name() string { return "event stream" }

// Begin says that the next version is the first of an allocation's life.
func (e *Log) Begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.begins = true
}

// FollowDeployments adds events of the allocation's deployments, which a function returns.
func (e *Log) FollowDeployments(deployments func() []*api.Deployment) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.deployments = deployments
}

// Resume begins with the first version of the allocation in this process, with another version of the job or not. The
// events that the process before has streamed are not known, those above the saved version's index among them: a client
// that asks for older ones learns that they are lost.
func (e *Log) Resume(saved, now *api.Allocation, registered bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	kind := eventUpdated
	if registered {
		kind = eventPlanned
	}
	e.lost, e.deployed = saved.ModifyIndex-1, saved.ModifyIndex
	e.appendLocked(&event{alloc: now, kind: kind, job: registered, arrives: true})
}

// PutAllocs adds an event for each allocation, unless the version was there before. It never fails, and keeps the
// values, which must not be changed.
func (e *Log) PutAllocs(_ context.Context, allocs []*api.Allocation) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, alloc := range allocs {
		e.addLocked(alloc)
	}
	return nil
}

// add keeps notes for the event of the allocation's next version.
func (e *Log) add(notes ...note) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pending = append(e.pending, notes...)
	if len(e.pending) >= maxPending {
		e.flushLocked()
	}
	if over := len(e.pending) - maxPending; over > 0 { // of an allocation that has had no version yet
		e.pending = e.pending[over:]
	}
}

// FollowServices adds events of the registrations of services in the allocation's namespace, other allocations'
// included, in their order, from now on. Such an event has the allocation's index, for a client to resume from; the
// registrations have their own. A change is handled only when the allocation has a new version, or a stream reads.
func (e *Log) FollowServices(services Services) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.services = services
	_, e.serviced, e.more = services.Since(math.MaxUint64)
}

// read says that a stream reads the events from now on, until done is called.
func (e *Log) read(ctx context.Context) (done func()) {
	e.mu.Lock()
	services := e.services
	e.mu.Unlock()
	if services == nil {
		return func() {}
	}
	return services.Read(ctx)
}

// takeServicesLocked returns the changes of services since the last call.
func (e *Log) takeServicesLocked() []*registry.Change {
	if e.services == nil {
		return nil
	}
	changes, next, more := e.services.Since(e.serviced)
	if next-uint64(len(changes)) > e.serviced && len(e.kept) > 0 { // some are not kept any more: every reader is too slow
		e.lost = max(e.lost, e.kept[len(e.kept)-1].alloc.ModifyIndex)
		e.first += uint64(len(e.kept)) + 1
	}
	e.serviced, e.more = next, more
	return changes
}

// catchUpLocked makes events of the changes of services since the allocation's latest version. Before its first version
// the changes wait.
func (e *Log) catchUpLocked() {
	if len(e.kept) == 0 {
		return
	}
	for part := range slices.Chunk(e.takeServicesLocked(), maxPending) {
		e.appendLocked(&event{alloc: e.kept[len(e.kept)-1].alloc, services: part})
	}
}

// flush makes an event of the notes that wait for a version which will not come. The event has the index of the last
// one.
func (e *Log) flush() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.flushLocked()
}

func (e *Log) flushLocked() {
	e.catchUpLocked()
	if len(e.kept) > 0 && len(e.pending) > 0 {
		e.appendLocked(&event{alloc: e.kept[len(e.kept)-1].alloc, notes: e.takeLocked()})
	}
}

func (e *Log) takeLocked() []note {
	notes := e.pending
	e.pending = nil
	return notes
}

func (e *Log) addLocked(alloc *api.Allocation) {
	var previous *api.Allocation
	for _, kept := range e.kept { // there are few, and one allocation
		if kept.alloc.ID == alloc.ID {
			previous = kept.alloc
		}
	}
	if previous != nil && alloc.ModifyIndex <= previous.ModifyIndex {
		return
	}
	e.catchUpLocked()
	next := &event{alloc: alloc, kind: kindOf(previous, alloc), begins: e.begins}
	if early := e.takeServicesLocked(); len(early) > 0 { // from before the first version
		next.services = early[max(0, len(early)-maxPending):]
	}
	next.notes = append(e.takeLocked(), e.deployedLocked(alloc)...)
	next.job = next.begins || previous != nil && evaluations.JobIndexOf(previous) != evaluations.JobIndexOf(alloc)
	if next.begins {
		next.kind, next.arrives, e.begins = eventPlanned, true, false
	}
	e.appendLocked(next)
}

// deployedLocked returns the changes of deployments up to a version of the allocation, in its present life and since
// this process has run it.
func (e *Log) deployedLocked(alloc *api.Allocation) (notes []note) {
	if e.deployments == nil {
		return nil
	}
	since := max(e.deployed, alloc.CreateIndex-1)
	for _, d := range slices.Backward(e.deployments()) {
		if d.ModifyIndex > since && d.ModifyIndex <= alloc.ModifyIndex {
			e.deployed = max(e.deployed, d.ModifyIndex)
			notes = append(notes, deploymentNote(d))
		}
	}
	return notes
}

func (e *Log) appendLocked(next *event) {
	e.kept = append(e.kept, next)
	e.states += next.states()
	for len(e.kept) > keptEvents || e.states > keptStates && len(e.kept) > 1 {
		e.states -= e.kept[0].states()
		e.lost = max(e.lost, e.kept[0].alloc.ModifyIndex)
		e.kept[0] = nil
		e.kept = e.kept[1:]
		e.first++
	}
	if old := len(e.kept) - 1 - keptEncodings; old >= 0 {
		e.kept[old].encoded.Store(nil)
	}
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *event) states() int { return len(e.alloc.TaskStates) + len(e.services) + len(e.notes) }

// kindOf returns Nomad's type of event for a version of an allocation; previous is nil when none is known.
func kindOf(previous, now *api.Allocation) string {
	switch {
	case previous == nil && now.ModifyIndex == now.CreateIndex:
		return eventPlanned
	case previous == nil:
		return eventUpdated
	case previous.DesiredStatus != now.DesiredStatus:
		return eventDesired
	case evaluations.JobIndexOf(previous) != evaluations.JobIndexOf(now):
		return eventPlanned
	}
	return eventUpdated
}

// reader is a reader's place among the events: the number of its next event, and the number of the first event after it
// began.
type reader struct {
	events            *Log
	next, live        uint64
	changed, services <-chan struct{} // one of them is closed when there are more events than the last read has returned
}

// reader returns a reader of the kept events. lost is the highest index, not below the given one, of which events may
// be missing; 0 if none is missing.
func (e *Log) reader(index uint64) (r *reader, lost uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.catchUpLocked()
	if index > 0 && index <= e.lost {
		lost = e.lost
	}
	return &reader{events: e, next: e.first, live: e.first + uint64(len(e.kept))}, lost
}

// read returns the events since the last read. ok is false for a slow reader: events that it has not read were dropped.
func (r *reader) read() (batch []*event, ok bool) {
	e := r.events
	e.mu.Lock()
	defer e.mu.Unlock()
	e.catchUpLocked()
	if r.next < e.first {
		return nil, false
	}
	batch = append(batch, e.kept[r.next-e.first:]...)
	r.next += uint64(len(batch))
	r.changed, r.services = e.changed, e.more
	if len(e.kept) == 0 { // changes of services come with the first version
		r.services = nil
	}
	return batch, true
}
