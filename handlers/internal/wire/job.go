package wire

import (
	"cmp"
	"time"

	"taskapi/internal/ptr"

	"github.com/hashicorp/nomad/api"
)

// Job is a job as Nomad encodes it. Reschedule, Migrate and Update of a job are moved into its groups when it is
// submitted; of the three Nomad keeps only Update.
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
	namespace := ""
	if job.Namespace != nil {
		namespace = *job.Namespace
	}
	w := &Job{Job: job, Update: cmp.Or(job.Update, noUpdate)}
	if job.UI != nil {
		w.UI = &UI{JobUIConfig: job.UI}
		for _, link := range job.UI.Links {
			w.UI.Links = append(w.UI.Links, Link(*link))
		}
	}
	for _, group := range job.TaskGroups {
		g := GroupOf(group, namespace)
		if group.Scaling != nil {
			g.Scaling = &Scaling{ScalingPolicy: group.Scaling, Target: map[string]string{
				"Namespace": namespace, "Job": ptr.Deref(job.ID), "Group": ptr.Deref(group.Name),
			}}
		}
		w.TaskGroups = append(w.TaskGroups, g)
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

// Scaling names what it scales.
type Scaling struct {
	*api.ScalingPolicy
	Namespace absent `json:",omitempty"`
	Target    map[string]string
}

func GroupOf(group *api.TaskGroup, namespace string) *Group {
	w := &Group{
		TaskGroup: group,
		Networks:  NetworksOf(group.Networks),
		Services:  ServicesOf(group.Services, namespace),
	}
	for _, task := range group.Tasks {
		w.Tasks = append(w.Tasks, TaskOf(task, namespace))
	}
	return w
}

// Task has a CSI plugin's configuration always, null where the SDK leaves it out.
type Task struct {
	*api.Task
	CSIPluginConfig *api.TaskCSIPluginConfig
	LogConfig       *LogConfig
	Resources       *TaskResources
	Services        []*Service
}

func TaskOf(task *api.Task, namespace string) *Task {
	w := &Task{Task: task, CSIPluginConfig: task.CSIPluginConfig, Services: ServicesOf(task.Services, namespace)}
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

// Service has its job's namespace; its check_restart is moved into its checks when the job is submitted.
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
		for i := range service.Checks {
			check := &service.Checks[i]
			w.Checks = append(w.Checks, &ServiceCheck{ServiceCheck: check, Advertise: check.Advertise})
		}
		wired = append(wired, w)
	}
	return wired
}
