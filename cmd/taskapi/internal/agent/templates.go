package agent

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/artifacts"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/allocrunner/dispatch"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/templates"
	"taskapi/allocrunner/templates/render"
	"taskapi/allocrunner/vault"
	"taskapi/auth"
)

// fileHooks returns the hooks that make a task's files: its payload, its artifacts, and its templates.
func (s *wiring) fileHooks(alloc *api.Allocation, task *api.Task) (hooks []interfaces.TaskHook) {
	if h := dispatch.HookOf(alloc.Job, task); h != nil {
		hooks = append(hooks, h)
	}
	hooks = append(hooks, artifacts.New(s.cfg.Settings.Artifacts, s.logger, task.Name))
	return append(hooks, s.secretHooks(alloc, task)...)
}

// secretHooks returns the hooks of a task's token of Vault and of its templates. An update may give it its first one.
func (s *wiring) secretHooks(alloc *api.Allocation, task *api.Task) (hooks []interfaces.TaskHook) {
	sources := map[render.Program]templates.Source{}
	if s.reader != nil {
		sources[render.Consul] = s.reader
	}
	if s.cfg.Settings.Vault.Configured() && task.Vault != nil {
		token := s.vaultHook(task)
		sources[render.Vault] = token
		hooks = append(hooks, token)
	}
	if s.templates == nil {
		s.templates = templates.NewWatch(s.cfg.Cluster, s.logger)
	}
	namespace, job, group := alloc.Namespace, interfaces.IdentityJobID(alloc), alloc.TaskGroup
	return append(hooks, templates.New(templates.Config{
		Watch: s.templates,
		Values: func(task string) templates.Values {
			return taskValues{s.policy.Principal(namespace, job, group, task), s.variables, s.registry, sources}
		},
		Logger: s.logger,
	}, task.Name))
}

func (s *wiring) vaultHook(task *api.Task) *vault.Hook {
	cfg := vault.Config{Settings: s.cfg.Settings.Vault, Logger: s.logger}
	if s.tokens != nil {
		cfg.Sign = func(wi *api.WorkloadIdentity) (string, error) { return s.tokens.Issue(task, wi) }
	}
	return vault.New(cfg, task.Name, task.Vault)
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
