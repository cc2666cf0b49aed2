package handlers

import (
	"cmp"
	"time"

	"github.com/hashicorp/nomad/api"
)

// wireJob is a job as Nomad encodes it. Reschedule, Migrate and Update of a job are moved into its groups when it is submitted;
// of the three Nomad keeps only Update.
type wireJob struct {
	*api.Job
	Migrate    absent `json:",omitempty"`
	Reschedule absent `json:",omitempty"`
	Update     *api.UpdateStrategy
	UI         *wireUI
	TaskGroups []*wireGroup
}

// noUpdate is the update block of a job that has none.
var noUpdate = &api.UpdateStrategy{
	Stagger: new(time.Duration), MaxParallel: new(int), HealthCheck: new(string), MinHealthyTime: new(time.Duration),
	HealthyDeadline: new(time.Duration), ProgressDeadline: new(time.Duration),
	Canary: new(int), AutoRevert: new(bool), AutoPromote: new(bool),
}

type wireUI struct {
	*api.JobUIConfig
	Links []wireLink
}

type wireLink struct {
	Label string
	URL   string `json:"Url"`
}

func wireJobOf(job *api.Job) *wireJob {
	if job == nil {
		return nil
	}
	namespace := ""
	if job.Namespace != nil {
		namespace = *job.Namespace
	}
	w := &wireJob{Job: job, Update: cmp.Or(job.Update, noUpdate)}
	if job.UI != nil {
		w.UI = &wireUI{JobUIConfig: job.UI}
		for _, link := range job.UI.Links {
			w.UI.Links = append(w.UI.Links, wireLink(*link))
		}
	}
	for _, group := range job.TaskGroups {
		g := wireGroupOf(group, namespace)
		if group.Scaling != nil {
			g.Scaling = &wireScaling{ScalingPolicy: group.Scaling, Target: map[string]string{
				"Namespace": namespace, "Job": valueOf(job.ID), "Group": valueOf(group.Name),
			}}
		}
		w.TaskGroups = append(w.TaskGroups, g)
	}
	return w
}

type wireGroup struct {
	*api.TaskGroup
	Networks []*wireNetwork
	Scaling  *wireScaling
	Services []*wireService
	Tasks    []*wireTask
}

// wireScaling names what it scales.
type wireScaling struct {
	*api.ScalingPolicy
	Namespace absent `json:",omitempty"`
	Target    map[string]string
}

func wireGroupOf(group *api.TaskGroup, namespace string) *wireGroup {
	w := &wireGroup{
		TaskGroup: group,
		Networks:  wireNetworksOf(group.Networks),
		Services:  wireServicesOf(group.Services, namespace),
	}
	for _, task := range group.Tasks {
		w.Tasks = append(w.Tasks, wireTaskOf(task, namespace))
	}
	return w
}

// wireTask has a CSI plugin's configuration always, null where the SDK leaves it out.
type wireTask struct {
	*api.Task
	CSIPluginConfig *api.TaskCSIPluginConfig
	LogConfig       *wireLogConfig
	Resources       *wireTaskResources
	Services        []*wireService
}

func wireTaskOf(task *api.Task, namespace string) *wireTask {
	w := &wireTask{Task: task, CSIPluginConfig: task.CSIPluginConfig, Services: wireServicesOf(task.Services, namespace)}
	if task.LogConfig != nil {
		w.LogConfig = &wireLogConfig{LogConfig: task.LogConfig}
	}
	if task.Resources != nil {
		w.Resources = &wireTaskResources{Resources: task.Resources, Networks: wireNetworksOf(task.Resources.Networks)}
	}
	return w
}

// wireLogConfig lacks Enabled, which Disabled has replaced.
type wireLogConfig struct {
	*api.LogConfig
	Enabled absent `json:",omitempty"`
}

type wireTaskResources struct {
	*api.Resources
	Networks []*wireNetwork
}

// wireService has its job's namespace; its check_restart is moved into its checks when the job is submitted.
type wireService struct {
	*api.Service
	CheckRestart absent `json:",omitempty"`
	Checks       []*wireServiceCheck
	Namespace    string
}

// wireServiceCheck leaves out Advertise, which Nomad lacks, unless the job file has it.
type wireServiceCheck struct {
	*api.ServiceCheck
	Advertise string `json:",omitempty"`
}

func wireServicesOf(services []*api.Service, namespace string) []*wireService {
	var wired []*wireService
	for _, service := range services {
		w := &wireService{Service: service, Namespace: namespace}
		for i := range service.Checks {
			check := &service.Checks[i]
			w.Checks = append(w.Checks, &wireServiceCheck{ServiceCheck: check, Advertise: check.Advertise})
		}
		wired = append(wired, w)
	}
	return wired
}
