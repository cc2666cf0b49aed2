package agent

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/consul"
	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/dispatch"
	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/drivers/builtin"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec/review"
	"taskapi/allocrunner/templates/render"
	"taskapi/allocrunner/volumes"
	"taskapi/identity/workload"
)

// checkServices refuses settings of Consul and Vault that can't be meant.
func (s Settings) checkServices() error {
	if s.Consul != (consul.Settings{}) && !s.ConsulAgent().Configured() { // ConsulEnv may be for other programs
		return errors.New("there is no address of Consul's agent: set consul.address to HOST:PORT, or CONSUL_HTTP_ADDR")
	}
	return errors.Join(s.ConsulAgent().Check(), s.Vault.Check())
}

// ConsulAgent returns how to reach Consul's agent: by the settings, and where they are empty, by the environment.
func (s Settings) ConsulAgent() consul.Settings { return s.Consul.Over(s.ConsulEnv) }

// TaskDrivers returns the drivers that tasks may have.
func (s Settings) TaskDrivers() *drivers.Registry { return cmp.Or(s.Drivers, builtin.Drivers) }

// host returns the features that this machine offers to jobs.
func (s Settings) host() review.Host {
	host := review.Host{
		Drivers: s.TaskDrivers(), Volumes: s.HostVolumes, FileDirs: s.Artifacts.FileDirs,
		Audiences: s.Audience(), LongestTTL: s.LongestTTL(), ExtraClaims: s.ExtraClaims.Names(),
		Unlimited: allocrunner.CanLimit, Unpinned: allocrunner.CanPin,
		Issues: func(job *api.Job, group *api.TaskGroup, task *api.Task, wi *api.WorkloadIdentity) error {
			sample := NewAllocation(uuid.Nil.String(), job, group)
			return workload.New(s.tokens(sample, sample.ID)).Check(task, wi)
		},
	}
	if s.Unlimited {
		host.Unlimited = func() error { return errors.New("enforce_resources is false") }
		host.Unpinned = host.Unlimited
	}
	if s.ConsulAgent().Configured() {
		host.Programs = append(host.Programs, render.Consul)
	}
	if s.Vault.Configured() {
		host.Programs = append(host.Programs, render.Vault)
	}
	switch {
	case s.ConsulHere:
		host.Consul = review.ConsulHere
	case s.ConsulAgent().Configured():
		host.Consul = review.HasConsul
	}
	return host
}

// Review gives services the provider that the settings want, and then does what review.Group does.
func (s Settings) Review(job *api.Job, group string) (*api.TaskGroup, []review.Finding, error) {
	s.choose(job)
	return review.Group(job, group, s.host())
}

// ReviewAll does so for every group, with review.Job.
func (s Settings) ReviewAll(job *api.Job) ([]*api.TaskGroup, []review.Finding, error) {
	s.choose(job)
	return review.Job(job, s.host())
}

// CheckTasks returns the things that an allocation's tasks need and this machine lacks: see allocrunner.CheckTasks and
// CheckDevices. It refuses volumes that can't be used. dir is the parent of the allocations' directories.
func (s Settings) CheckTasks(alloc *api.Allocation, dir string) []review.Finding {
	isParent := interfaces.IsParent(alloc.Job)
	if isParent {
		alloc = dispatch.Sample(alloc)
	}
	findings := allocrunner.CheckTasks(alloc, dir, s.TaskDrivers())
	if !isParent { // whose children take devices, each at its start
		findings = append(findings, s.CheckDevices(alloc, datadir.Dir(filepath.Dir(dir)))...)
	}
	return append(findings, s.CheckVolumes(alloc, dir)...)
}

// CheckVolumes refuses the volumes of an allocation's group that can't be used now. dir is as for CheckTasks.
func (s Settings) CheckVolumes(alloc *api.Allocation, dir string) (findings []review.Finding) {
	requests := alloc.GetTaskGroup().Volumes
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		v, err := volumes.Find(s.HostVolumes, requests[name], alloc.Name)
		if err == nil {
			err = v.Check(filepath.Dir(dir))
		}
		if err != nil {
			findings = append(findings, review.Finding{Severity: review.Refused, Feature: "volume source",
				Where: fmt.Sprintf("group %q > volume %q", alloc.TaskGroup, name), Message: err.Error()})
		}
	}
	return findings
}

// mounts reports whether a driver mounts volumes.
func (s Settings) mounts(driver string) bool {
	d, err := s.TaskDrivers().Get(driver)
	return err == nil && d.Capabilities().Mounts
}

func (s Settings) choose(job *api.Job) {
	if s.ConsulHere {
		review.ServeHere(job)
	}
}

// newConsul returns the provider that registers services with Consul's agent; nil without an agent.
func (s *wiring) newConsul(alloc *api.Allocation) (*consul.Provider, error) {
	settings := s.cfg.Settings.ConsulAgent()
	if !settings.Configured() {
		return nil, nil
	}
	block := cmp.Or(alloc.GetTaskGroup().Consul, &api.Consul{})
	namespace := cmp.Or(block.Namespace, *cmp.Or(alloc.Job.ConsulNamespace, new("")))
	s.reader = consul.NewReader(settings, s.cfg.ConsulSecrets, namespace, block.Partition)
	return consul.New(consul.Config{
		Settings: settings, Secrets: s.cfg.ConsulSecrets, Namespace: namespace, Partition: block.Partition,
		AllocID: alloc.ID, Owner: consul.Owner(alloc.NodeID, string(s.cfg.Dir)), Lives: s.cfg.Dir.Lives, Logger: s.logger,
	})
}
