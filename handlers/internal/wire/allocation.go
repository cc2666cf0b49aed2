// Package wire has the types whose JSON is Nomad's, where the SDK's types encode differently. Most embed the SDK's type
// and shadow what differs: a field that the SDK lacks is added, one that Nomad leaves out when it is empty gets
// omitempty, and one that Nomad doesn't have becomes an absent field. What clients decode into is the SDK's type either
// way.
package wire

import (
	"cmp"
	"reflect"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/slice"
)

// Nomad's defaults for a machine that names none.
const (
	NodePool   = "default"
	datacenter = "dc1"
)

// absent shadows a field of the SDK that Nomad's answers never have. It is always nil.
type absent *struct{}

// Sparse returns a struct of the SDK as one that encodes without its empty fields.
func Sparse[T any](v *T) any {
	fields := reflect.VisibleFields(reflect.TypeFor[T]())
	for i := range fields {
		fields[i].Tag = `json:",omitzero"`
	}
	return reflect.ValueOf(*v).Convert(reflect.StructOf(fields)).Interface()
}

// Allocation is GET /v1/allocation/:id. Nomad leaves out its empty fields, but not those of most values inside.
type Allocation struct {
	ID                    string                     `json:",omitempty"`
	Namespace             string                     `json:",omitempty"`
	EvalID                string                     `json:",omitempty"`
	Name                  string                     `json:",omitempty"`
	NodeID                string                     `json:",omitempty"`
	NodeName              string                     `json:",omitempty"`
	JobID                 string                     `json:",omitempty"`
	Job                   *Job                       `json:",omitempty"`
	TaskGroup             string                     `json:",omitempty"`
	Resources             *Resources                 `json:",omitempty"`
	SharedResources       *Resources                 `json:",omitempty"`
	TaskResources         map[string]*Resources      `json:",omitempty"`
	AllocatedResources    *Allocated                 `json:",omitempty"`
	Metrics               *api.AllocationMetric      `json:",omitempty"`
	DesiredStatus         string                     `json:",omitempty"`
	DesiredDescription    string                     `json:",omitempty"`
	DesiredTransition     *api.DesiredTransition     `json:",omitempty"`
	ClientStatus          string                     `json:",omitempty"`
	ClientDescription     string                     `json:",omitempty"`
	TaskStates            map[string]*TaskState      `json:",omitempty"`
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

func AllocationOf(a *api.Allocation, keyID string) *Allocation {
	w := &Allocation{
		ID: a.ID, Namespace: a.Namespace, EvalID: a.EvalID, Name: a.Name, NodeID: a.NodeID, NodeName: a.NodeName,
		JobID: a.JobID, Job: JobOf(submitted(a)), TaskGroup: a.TaskGroup,
		Resources: ResourcesOf(a.Resources), SharedResources: sharedResourcesOf(a), TaskResources: taskResourcesOf(a),
		AllocatedResources: AllocatedOf(a), Metrics: placementOf(a),
		DesiredStatus: a.DesiredStatus, DesiredDescription: a.DesiredDescription,
		ClientStatus: a.ClientStatus, ClientDescription: a.ClientDescription, TaskStates: TaskStatesOf(a.TaskStates),
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

// placementOf returns how the allocation was placed: on the only machine. nomad alloc status -verbose needs it.
func placementOf(a *api.Allocation) *api.AllocationMetric {
	if a.Metrics != nil {
		return a.Metrics
	}
	return &api.AllocationMetric{
		NodesEvaluated: 1, NodesInPool: 1, NodePool: NodePool, NodesAvailable: map[string]int{datacenter: 1},
		ScoreMetaData: []*api.NodeScoreMeta{{NodeID: a.NodeID, Scores: map[string]float64{}}},
	}
}

// networkStatusOf returns the network of an allocation. Once the allocation has begun, that is an empty one: tasks use
// the machine's.
func networkStatusOf(a *api.Allocation) *api.AllocNetworkStatus {
	if a.NetworkStatus != nil || a.ClientStatus == "" || a.ClientStatus == api.AllocClientStatusPending {
		return a.NetworkStatus
	}
	return new(api.AllocNetworkStatus)
}

// Stub is one element of GET /v1/allocations. Empty fields are present; resources only when requested.
type Stub struct {
	*api.AllocationListStub
	AllocatedResources *Allocated `json:",omitempty"`
	DesiredTransition  api.DesiredTransition
	TaskStates         map[string]*TaskState
}

func StubOf(a *api.Allocation, resources, taskStates bool) *Stub {
	stub := &Stub{AllocationListStub: stubOf(a), DesiredTransition: a.DesiredTransition}
	if resources {
		stub.AllocatedResources = AllocatedOf(a)
	}
	if taskStates {
		stub.TaskStates = TaskStatesOf(a.TaskStates)
	}
	return stub
}

// stubOf returns the SDK's Stub, also for a job that is not canonical: the SDK's method dereferences the job's type and
// version.
func stubOf(a *api.Allocation) *api.AllocationListStub {
	var job api.Job
	if a.Job != nil {
		job = *a.Job
	}
	job.Type, job.Version = cmp.Or(job.Type, new(string)), cmp.Or(job.Version, new(uint64))
	whole := *a
	whole.Job = &job
	return whole.Stub()
}

// TaskState has null for a time that has not come, and Paused, which the SDK lacks.
type TaskState struct {
	*api.TaskState
	LastRestart *time.Time
	StartedAt   *time.Time
	FinishedAt  *time.Time
	Paused      string
	Events      []*TaskEvent
}

func TaskStatesOf(states map[string]*api.TaskState) map[string]*TaskState {
	if states == nil {
		return nil
	}
	wired := make(map[string]*TaskState, len(states))
	for task, state := range states {
		if state == nil {
			wired[task] = nil
			continue
		}
		wired[task] = &TaskState{
			TaskState:   state,
			LastRestart: timeOf(state.LastRestart),
			StartedAt:   timeOf(state.StartedAt),
			FinishedAt:  timeOf(state.FinishedAt),
			Paused:      string(interfaces.ShownSchedule(state)),
			Events:      slice.Map(state.Events, TaskEventOf),
		}
	}
	return wired
}

func timeOf(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// TaskEvent has details always, and no DiskSize.
type TaskEvent struct {
	*api.TaskEvent
	Details  map[string]string
	DiskSize absent `json:",omitempty"`
}

func TaskEventOf(event *api.TaskEvent) *TaskEvent {
	w := &TaskEvent{TaskEvent: event, Details: event.Details}
	if w.Details == nil {
		w.Details = map[string]string{}
	}
	return w
}

// Check is one result in GET .../checks: no Task for a service of the group, no StatusCode without an HTTP answer.
type Check struct {
	api.AllocCheckStatus
	Task       string `json:",omitempty"`
	StatusCode int    `json:",omitempty"`
}

// ChecksOf returns nil, hence null, when there are no results.
func ChecksOf(results api.AllocCheckStatuses) map[string]Check {
	if len(results) == 0 {
		return nil
	}
	wired := make(map[string]Check, len(results))
	for id, result := range results {
		wired[id] = Check{AllocCheckStatus: result, Task: result.Task, StatusCode: result.StatusCode}
	}
	return wired
}
