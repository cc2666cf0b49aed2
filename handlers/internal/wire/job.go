package wire

import (
	"cmp"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/ptr"
	"taskapi/internal/slice"
)

// Job is a job as Nomad encodes it. When a job is submitted, its Reschedule, Migrate and Update are moved into its
// groups; of the three Nomad keeps only Update.
type Job struct {
	*api.Job
	Migrate    absent `json:",omitempty"`
	Reschedule absent `json:",omitempty"`
	Update     *api.UpdateStrategy
	UI         *UI
	TaskGroups []*Group
}

// noUpdate is the update block of a job that has none.
var noUpdate = &api.UpdateStrategy{
	Stagger: new(time.Duration), MaxParallel: new(int), HealthCheck: new(string), MinHealthyTime: new(time.Duration),
	HealthyDeadline: new(time.Duration), ProgressDeadline: new(time.Duration),
	Canary: new(int), AutoRevert: new(bool), AutoPromote: new(bool),
}

type UI struct {
	*api.JobUIConfig
	Links []Link
}

type Link struct {
	Label string
	URL   string `json:"Url"`
}

func JobOf(job *api.Job) *Job {
	if job == nil {
		return nil
	}
	namespace := ptr.Deref(job.Namespace)
	w := &Job{Job: job, Update: cmp.Or(job.Update, noUpdate)}
	if job.UI != nil {
		w.UI = &UI{job.UI, slice.Map(job.UI.Links, func(l *api.JobUILink) Link { return Link(*l) })}
	}
	for _, group := range job.TaskGroups {
		w.TaskGroups = append(w.TaskGroups, GroupOf(group, namespace))
	}
	return w
}

type Group struct {
	*api.TaskGroup
	Networks []*Network
	Scaling  *Scaling
	Services []*Service
	Tasks    []*Task
}

// Scaling lacks Namespace, which its Target has.
type Scaling struct {
	*api.ScalingPolicy
	Namespace absent `json:",omitempty"`
}

func scalingOf(policy *api.ScalingPolicy) *Scaling {
	if policy == nil {
		return nil
	}
	return &Scaling{ScalingPolicy: policy}
}

func GroupOf(group *api.TaskGroup, namespace string) *Group {
	return &Group{
		TaskGroup: group,
		Scaling:   scalingOf(group.Scaling),
		Networks:  NetworksOf(group.Networks),
		Services:  ServicesOf(group.Services, namespace),
		Tasks:     slice.Map(group.Tasks, func(task *api.Task) *Task { return TaskOf(task, namespace) }),
	}
}

// Task has a CSI plugin's configuration always, null where the SDK leaves it out.
type Task struct {
	*api.Task
	CSIPluginConfig *api.TaskCSIPluginConfig
	LogConfig       *LogConfig
	Resources       *TaskResources
	ScalingPolicies []*Scaling
	Services        []*Service
}

func TaskOf(task *api.Task, namespace string) *Task {
	w := &Task{
		Task: task, CSIPluginConfig: task.CSIPluginConfig, ScalingPolicies: slice.Map(task.ScalingPolicies, scalingOf),
		Services: ServicesOf(task.Services, namespace),
	}
	if task.LogConfig != nil {
		w.LogConfig = &LogConfig{LogConfig: task.LogConfig}
	}
	if task.Resources != nil {
		w.Resources = &TaskResources{Resources: task.Resources, Networks: NetworksOf(task.Resources.Networks)}
	}
	return w
}

// LogConfig lacks Enabled, which Disabled has replaced.
type LogConfig struct {
	*api.LogConfig
	Enabled absent `json:",omitempty"`
}

type TaskResources struct {
	*api.Resources
	Networks []*Network
}

// Service has its job's namespace, or Consul's default one; its check_restart is moved into its checks when the job is
// submitted.
type Service struct {
	*api.Service
	CheckRestart absent `json:",omitempty"`
	Checks       []*ServiceCheck
	Namespace    string
}

// ServiceCheck leaves out Advertise, which Nomad lacks, unless the job file has it.
type ServiceCheck struct {
	*api.ServiceCheck
	Advertise string `json:",omitempty"`
}

func ServicesOf(services []*api.Service, namespace string) []*Service {
	var wired []*Service
	for _, service := range services {
		w := &Service{Service: service, Namespace: namespace}
		if service.Provider == api.ServiceProviderConsul {
			w.Namespace = "default"
		}
		for i := range service.Checks {
			check := &service.Checks[i]
			w.Checks = append(w.Checks, &ServiceCheck{ServiceCheck: check, Advertise: check.Advertise})
		}
		wired = append(wired, w)
	}
	return wired
}

// submitted returns the allocation's job as it was submitted, nil for none.
func submitted(alloc *api.Allocation) *api.Job {
	if alloc.Job == nil {
		return nil
	}
	job := *alloc.Job
	if ptr.Deref(job.Status) == "" {
		job.Status = new("pending")
	}
	if job.SubmitTime == nil { // nomad job status needs one
		job.SubmitTime = &alloc.CreateTime
	}
	return &job
}

// JobNow returns the allocation's job with its present status.
func JobNow(alloc *api.Allocation) *api.Job {
	job := submitted(alloc)
	switch alloc.ClientStatus {
	case api.AllocClientStatusPending, "":
		job.Status = new("pending")
	case api.AllocClientStatusRunning, api.AllocClientStatusUnknown:
		job.Status = new("running")
	default:
		job.Status = new("dead")
	}
	if alloc.DesiredStatus == api.AllocDesiredStatusStop {
		job.Stop = new(true)
	}
	return job
}

// JobStub adds what the SDK lacks.
type JobStub struct {
	*api.JobListStub
	NodePool    string
	Multiregion *api.Multiregion
}

func JobStubOf(alloc *api.Allocation, meta bool) JobStub {
	job := JobNow(alloc)
	stub := &api.JobListStub{
		ID: alloc.JobID, ParentID: ptr.Deref(job.ParentID), Name: ptr.Deref(job.Name), Namespace: alloc.Namespace,
		Datacenters: job.Datacenters, Type: ptr.Deref(job.Type), Priority: ptr.Deref(job.Priority), Stop: ptr.Deref(job.Stop),
		Status: ptr.Deref(job.Status), StatusDescription: ptr.Deref(job.StatusDescription), JobSummary: JobSummaryOf(alloc),
		CreateIndex: ptr.Deref(job.CreateIndex), ModifyIndex: ptr.Deref(job.ModifyIndex),
		JobModifyIndex: ptr.Deref(job.JobModifyIndex),
		SubmitTime:     ptr.Deref(job.SubmitTime),
		Periodic:       job.IsPeriodic(), ParameterizedJob: job.IsParameterized(),
	}
	if meta {
		stub.Meta = job.Meta
	}
	return JobStub{stub, ptr.Deref(job.NodePool), job.Multiregion}
}

// JobSummaryOf counts the one allocation under its status. A job's other groups have none.
func JobSummaryOf(alloc *api.Allocation) *api.JobSummary {
	summary := map[string]api.TaskGroupSummary{}
	for _, group := range alloc.Job.TaskGroups {
		summary[ptr.Deref(group.Name)] = api.TaskGroupSummary{}
	}
	var count api.TaskGroupSummary
	switch alloc.ClientStatus {
	case api.AllocClientStatusRunning:
		count.Running = 1
	case api.AllocClientStatusComplete:
		count.Complete = 1
	case api.AllocClientStatusFailed:
		count.Failed = 1
	case api.AllocClientStatusLost:
		count.Lost = 1
	case api.AllocClientStatusUnknown:
		count.Unknown = 1
	default:
		count.Starting = 1
	}
	summary[alloc.TaskGroup] = count
	return &api.JobSummary{
		JobID: alloc.JobID, Namespace: alloc.Namespace, Summary: summary, Children: &api.JobChildrenSummary{},
		CreateIndex: alloc.CreateIndex, ModifyIndex: alloc.ModifyIndex,
	}
}
