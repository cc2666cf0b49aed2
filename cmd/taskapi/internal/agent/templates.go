package agent

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/artifacts"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/templates"
	"taskapi/allocrunner/templates/render"
	"taskapi/auth"
)

// fileHooks returns the hooks that make a task's files: its artifacts, and its templates.
func (s *wiring) fileHooks(alloc *api.Allocation, task *api.Task) []interfaces.TaskHook {
	hooks := s.templateHooks(alloc, task)
	if len(task.Artifacts) > 0 {
		hooks = append([]interfaces.TaskHook{artifacts.New(s.cfg.Settings.Artifacts, s.logger, task.Name)}, hooks...)
	}
	return hooks
}

// templateHooks returns the hook of a task's templates; none without templates.
func (s *wiring) templateHooks(alloc *api.Allocation, task *api.Task) []interfaces.TaskHook {
	if len(task.Templates) == 0 {
		return nil
	}
	if s.templates == nil {
		s.templates = templates.NewWatch(s.cfg.Cluster, s.logger)
	}
	sources := map[render.Program]templates.Source{}
	if s.reader != nil {
		sources[render.Consul] = s.reader
	}
	namespace, job, group := alloc.Namespace, alloc.JobID, alloc.TaskGroup
	return []interfaces.TaskHook{templates.New(templates.Config{
		Watch: s.templates,
		Values: func(task string) templates.Values {
			return taskValues{s.policy.Principal(namespace, job, group, task), s.variables, s.registry, sources}
		},
		Logger: s.logger,
	}, task.Name)}
}

// taskValues are the variables and services that a task may read, as it could over the API.
type taskValues struct {
	task      *auth.Principal
	variables *variables.Service // nil for none
	registry  *registry.Registry
	sources   map[render.Program]templates.Source
}

var _ templates.Values = taskValues{}

func (v taskValues) Variable(ctx context.Context, namespace, path string) (*api.Variable, error) {
	if v.variables == nil || !v.task.MayVariable(namespace, path, auth.VariableRead) {
		return nil, templates.ErrDenied
	}
	found, _, err := v.variables.Read(ctx, namespace, path)
	return found, err
}

func (v taskValues) Variables(ctx context.Context, namespace, prefix string) ([]*api.VariableMetadata, error) {
	if v.variables == nil || !v.task.Capabilities.Has(auth.VariablesRead) {
		return nil, templates.ErrDenied
	}
	list, _, err := v.variables.List(ctx, namespace, prefix, func(namespace, path string) bool {
		return v.task.MayVariable(namespace, path, auth.VariableList)
	})
	return list, err
}

func (v taskValues) Services(ctx context.Context, name string) ([]*api.ServiceRegistration, error) {
	found, _, err := v.registry.Services(ctx, v.task.Claims.Namespace, name)
	return found, err
}

// Source returns nil for a program that is not configured.
func (v taskValues) Source(program render.Program) templates.Source { return v.sources[program] }
