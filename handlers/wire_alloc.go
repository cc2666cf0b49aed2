package handlers

import (
	"reflect"
	"time"

	"github.com/hashicorp/nomad/api"
)

// The types named wire… encode as Nomad's own answers do. Most embed the SDK's type and shadow what differs: a field that the
// SDK lacks is added, one that Nomad leaves out when it is empty gets omitempty, and one that Nomad doesn't have at all becomes
// an absent field. What clients decode into is the SDK's type either way.

// absent shadows a field of the SDK that Nomad's answers never have. It is always nil.
type absent *struct{}

// sparse returns a struct of the SDK as one that encodes without its empty fields.
func sparse[T any](v *T) any {
	fields := reflect.VisibleFields(reflect.TypeFor[T]())
	for i := range fields {
		fields[i].Tag = `json:",omitzero"`
	}
	return reflect.ValueOf(*v).Convert(reflect.StructOf(fields)).Interface()
}

// wireAllocation is GET /v1/allocation/:id. Nomad leaves out every empty field of it, but not of most of what is inside.
type wireAllocation struct {
	ID                    string                     `json:",omitempty"`
	Namespace             string                     `json:",omitempty"`
	EvalID                string                     `json:",omitempty"`
	Name                  string                     `json:",omitempty"`
	NodeID                string                     `json:",omitempty"`
	NodeName              string                     `json:",omitempty"`
	JobID                 string                     `json:",omitempty"`
	Job                   *wireJob                   `json:",omitempty"`
	TaskGroup             string                     `json:",omitempty"`
	Resources             *wireResources             `json:",omitempty"`
	SharedResources       *wireResources             `json:",omitempty"`
	TaskResources         map[string]*wireResources  `json:",omitempty"`
	AllocatedResources    *wireAllocated             `json:",omitempty"`
	Metrics               *api.AllocationMetric      `json:",omitempty"`
	DesiredStatus         string                     `json:",omitempty"`
	DesiredDescription    string                     `json:",omitempty"`
	DesiredTransition     *api.DesiredTransition     `json:",omitempty"`
	ClientStatus          string                     `json:",omitempty"`
	ClientDescription     string                     `json:",omitempty"`
	TaskStates            map[string]*wireTaskState  `json:",omitempty"`
	DeploymentID          string                     `json:",omitempty"`
	DeploymentStatus      *api.AllocDeploymentStatus `json:",omitempty"`
	FollowupEvalID        string                     `json:",omitempty"`
	PreviousAllocation    string                     `json:",omitempty"`
	NextAllocation        string                     `json:",omitempty"`
	RescheduleTracker     *api.RescheduleTracker     `json:",omitempty"`
	NetworkStatus         *api.AllocNetworkStatus    `json:",omitempty"`
	PreemptedAllocations  []string                   `json:",omitempty"`
	PreemptedByAllocation string                     `json:",omitempty"`
	SigningKeyID          string                     `json:",omitempty"`
	CreateIndex           uint64                     `json:",omitempty"`
	ModifyIndex           uint64                     `json:",omitempty"`
	AllocModifyIndex      uint64                     `json:",omitempty"`
	CreateTime            int64                      `json:",omitempty"`
	ModifyTime            int64                      `json:",omitempty"`
}

func wireAllocationOf(a *api.Allocation, keyID string) *wireAllocation {
	total, perTask := resourcesOf(a)
	w := &wireAllocation{
		ID: a.ID, Namespace: a.Namespace, EvalID: a.EvalID, Name: a.Name, NodeID: a.NodeID, NodeName: a.NodeName,
		JobID: a.JobID, Job: wireJobOf(submitted(a)), TaskGroup: a.TaskGroup,
		Resources: total, SharedResources: sharedResourcesOf(a), TaskResources: perTask, AllocatedResources: wireAllocatedOf(a),
		Metrics:       placementOf(a),
		DesiredStatus: a.DesiredStatus, DesiredDescription: a.DesiredDescription,
		ClientStatus: a.ClientStatus, ClientDescription: a.ClientDescription, TaskStates: wireTaskStatesOf(a.TaskStates),
		DeploymentID: a.DeploymentID, DeploymentStatus: a.DeploymentStatus, FollowupEvalID: a.FollowupEvalID,
		PreviousAllocation: a.PreviousAllocation, NextAllocation: a.NextAllocation, RescheduleTracker: a.RescheduleTracker,
		NetworkStatus: networkStatusOf(a), PreemptedAllocations: a.PreemptedAllocations,
		PreemptedByAllocation: a.PreemptedByAllocation, SigningKeyID: keyID,
		CreateIndex: a.CreateIndex, ModifyIndex: a.ModifyIndex, AllocModifyIndex: a.AllocModifyIndex,
		CreateTime: a.CreateTime, ModifyTime: a.ModifyTime,
	}
	if a.DesiredTransition != (api.DesiredTransition{}) {
		w.DesiredTransition = &a.DesiredTransition
	}
	return w
}

// placementOf returns how the allocation was placed: on this machine, the one that there is. nomad alloc status -verbose needs it.
func placementOf(a *api.Allocation) *api.AllocationMetric {
	if a.Metrics != nil {
		return a.Metrics
	}
	return &api.AllocationMetric{
		NodesEvaluated: 1, NodesInPool: 1, NodePool: nodePool, NodesAvailable: map[string]int{datacenter: 1},
		ScoreMetaData: []*api.NodeScoreMeta{{NodeID: a.NodeID, Scores: map[string]float64{}}},
	}
}

// networkStatusOf returns the network of an allocation. Once it has begun that is an empty one, since tasks use the
// machine's.
func networkStatusOf(a *api.Allocation) *api.AllocNetworkStatus {
	if a.NetworkStatus != nil || a.ClientStatus == "" || a.ClientStatus == api.AllocClientStatusPending {
		return a.NetworkStatus
	}
	return new(api.AllocNetworkStatus)
}

// wireStub is one element of GET /v1/allocations. Empty fields are present; resources only when requested.
type wireStub struct {
	*api.AllocationListStub
	AllocatedResources *wireAllocated `json:",omitempty"`
	DesiredTransition  api.DesiredTransition
	TaskStates         map[string]*wireTaskState
}

func wireStubOf(a *api.Allocation, resources, taskStates bool) *wireStub {
	stub := &wireStub{AllocationListStub: stubOf(a), DesiredTransition: a.DesiredTransition}
	if resources {
		stub.AllocatedResources = wireAllocatedOf(a)
	}
	if taskStates {
		stub.TaskStates = wireTaskStatesOf(a.TaskStates)
	}
	return stub
}

// stubOf returns the SDK's Stub for a job that need not be canonical: that one dereferences its type and version.
func stubOf(a *api.Allocation) *api.AllocationListStub {
	var job api.Job
	if a.Job != nil {
		job = *a.Job
	}
	if job.Type == nil {
		job.Type = new(string)
	}
	if job.Version == nil {
		job.Version = new(uint64)
	}
	whole := *a
	whole.Job = &job
	return whole.Stub()
}

// wireTaskState has null for a time that has not come, and Paused, for a schedule that the SDK keeps elsewhere.
type wireTaskState struct {
	*api.TaskState
	LastRestart *time.Time
	StartedAt   *time.Time
	FinishedAt  *time.Time
	Paused      string
	Events      []*wireTaskEvent
}

func wireTaskStatesOf(states map[string]*api.TaskState) map[string]*wireTaskState {
	if states == nil {
		return nil
	}
	wired := make(map[string]*wireTaskState, len(states))
	for task, state := range states {
		if state == nil {
			wired[task] = nil
			continue
		}
		w := &wireTaskState{
			TaskState:   state,
			LastRestart: timeOf(state.LastRestart),
			StartedAt:   timeOf(state.StartedAt),
			FinishedAt:  timeOf(state.FinishedAt),
		}
		for _, event := range state.Events {
			w.Events = append(w.Events, wireTaskEventOf(event))
		}
		wired[task] = w
	}
	return wired
}

func timeOf(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// wireTaskEvent has details always, and no DiskSize.
type wireTaskEvent struct {
	*api.TaskEvent
	Details  map[string]string
	DiskSize absent `json:",omitempty"`
}

func wireTaskEventOf(event *api.TaskEvent) *wireTaskEvent {
	w := &wireTaskEvent{TaskEvent: event, Details: event.Details}
	if w.Details == nil {
		w.Details = map[string]string{}
	}
	return w
}

// wireCheck is one result in GET .../checks: no Task for a service of the group, no StatusCode without an HTTP answer.
type wireCheck struct {
	api.AllocCheckStatus
	Task       string `json:",omitempty"`
	StatusCode int    `json:",omitempty"`
}

// wireChecksOf returns nil, hence null, when there are no results.
func wireChecksOf(results api.AllocCheckStatuses) map[string]wireCheck {
	if len(results) == 0 {
		return nil
	}
	wired := make(map[string]wireCheck, len(results))
	for id, result := range results {
		wired[id] = wireCheck{AllocCheckStatus: result, Task: result.Task, StatusCode: result.StatusCode}
	}
	return wired
}
