// Package templates renders the template blocks of tasks into their directories before they start, and again when a
// variable, a service, a file or a value of another program (a Source) changes.
//
// It promises that a file is written whole, and only below the task's directory or the shared one; that a template
// reads only values that its task may read; and that no value of a variable or a secret gets into events, errors or
// logs.
//
// It renders in another process (package render), which runs only while templates are rendered. One watch of the store
// waits for the changes of all tasks of an allocation. Only the answers of other programs are kept: all other values
// are read again at each change.
package templates

import (
	"context"
	"log/slog"
	"maps"
	"reflect"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/templates/render"
	"taskapi/internal/ptr"
)

// ErrDenied means that the task may not read what its template asks for.
var ErrDenied = render.ErrDenied

// Values are the variables and the services as one task may read them. Errors: ErrDenied, the store's.
type Values interface {
	// Variable returns a variable, nil if there is none.
	Variable(ctx context.Context, namespace, path string) (*api.Variable, error)
	// Variables lists the variables below a prefix that the task may list.
	Variables(ctx context.Context, namespace, prefix string) ([]*api.VariableMetadata, error)
	// Services returns the registrations of a service in the task's namespace; an empty name stands for all.
	Services(ctx context.Context, name string) ([]*api.ServiceRegistration, error)
	// Source returns the Source that follows queries for another program; nil if that program is not configured.
	Source(render.Program) Source
}

// Config configures the templates of an allocation. All fields are required.
type Config struct {
	Watch  *Watch
	Values func(task string) Values
	Logger *slog.Logger
}

// Hook renders the templates of one task.
type Hook struct {
	cfg    Config
	logger *slog.Logger
	task   string

	mu      sync.Mutex // guards the field below
	manager *manager   // nil before the first start, and after the task's end
}

var (
	_ interfaces.TaskPrestartHook  = (*Hook)(nil)
	_ interfaces.TaskPoststartHook = (*Hook)(nil)
	_ interfaces.TaskPreKillHook   = (*Hook)(nil)
	_ interfaces.TaskStopHook      = (*Hook)(nil)
	_ interfaces.ShutdownHook      = (*Hook)(nil)
)

// New returns the hook of a task, which an update may give templates. It comes after all hooks that add to the task's
// environment, which templates can read.
func New(cfg Config, task string) *Hook {
	return &Hook{cfg: cfg, logger: cfg.Logger.With("task", task), task: task}
}

// Name returns the name of the hook.
func (h *Hook) Name() string { return "template" }

// Prestart waits until every template has been rendered, and returns the variables of the templates with env. For a
// process that runs already it waits only for the first attempt. A restart renders only templates whose values have
// changed.
func (h *Hook) Prestart(
	ctx context.Context, req *interfaces.TaskPrestartRequest,
) (*interfaces.TaskPrestartResponse, error) {
	m, err := h.managerOf(req)
	if m == nil || err != nil {
		return nil, err
	}
	attempted := m.attempted
	if !req.Restored {
		attempted = nil
	}
	select {
	case <-m.rendered:
	case <-attempted:
	case <-m.done: // it has failed the task, which is about to be killed
		if req.Restored {
			return nil, nil
		}
		<-ctx.Done()
		return nil, ctx.Err()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !req.Restored { // a restored process may have read the files before they were written
		m.pending.handOver()
	}
	return &interfaces.TaskPrestartResponse{Env: m.env()}, nil
}

// managerOf returns the manager of the task's templates, nil for a task without. A manager lives through restarts of
// the task, unless a restart is to render the templates again or the job gives the task another environment or other
// templates.
func (h *Hook) managerOf(req *interfaces.TaskPrestartRequest) (*manager, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.manager; m != nil {
		policy := req.Task.RestartPolicy
		again := m.isRendered() && policy != nil && ptr.Deref(policy.RenderTemplates)
		if !again && maps.Equal(m.req.Task.Env, req.Task.Env) &&
			reflect.DeepEqual(m.req.Task.Templates, req.Task.Templates) {
			return m, nil
		}
		m.stop(context.Background())
		h.manager = nil
	}
	if len(req.Task.Templates) == 0 {
		return nil, nil
	}
	m, err := newManager(h, req)
	h.manager = m
	return m, err
}

// PreKilling stops changes, such as the end of the task's own services, from acting on a process that is ending.
func (h *Hook) PreKilling(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.manager != nil {
		h.manager.ending.Store(true)
	}
	return nil
}

// Poststart runs the scripts with run_on_first_render.
func (h *Hook) Poststart(context.Context, *interfaces.TaskPoststartRequest) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.manager != nil {
		h.manager.started()
	}
	return nil
}

// Stop ends the rendering.
func (h *Hook) Stop(ctx context.Context) error {
	h.mu.Lock()
	m := h.manager
	h.manager = nil
	h.mu.Unlock()
	if m != nil {
		m.stop(ctx)
	}
	return nil
}

// Shutdown ends the rendering for a task that runs on.
func (h *Hook) Shutdown() { _ = h.Stop(context.Background()) }
