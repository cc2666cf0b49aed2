package simulate_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/allocrunner/internal/registration/registrationtest"
	"taskapi/allocrunner/simulate"
	"taskapi/internal/must"
)

// diary is every hook of an allocation and of its tasks, and what they were called for.
type diary struct {
	mu      sync.Mutex // guards the fields below
	calls   []string
	refuse  bool // Prestart fails
	restart func(ctx context.Context, reason string) error
}

func (d *diary) note(call string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, call)
}

func (d *diary) read() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

func (d *diary) Name() string { return "diary" }

func (d *diary) Prerun(_ context.Context, req *interfaces.RunnerPrerunRequest) error {
	d.note("prerun " + req.Env.Get("NOMAD_ALLOC_ID"))
	return nil
}

func (d *diary) PreKill()                      { d.note("prekill") }
func (d *diary) Postrun(context.Context) error { d.note("postrun"); return nil }
func (d *diary) Destroy(context.Context) error { d.note("destroy"); return nil }
func (d *diary) Shutdown()                     { d.note("shutdown") }

type taskDiary struct{ *diary }

func (d taskDiary) Prestart(_ context.Context,
	req *interfaces.TaskPrestartRequest) (*interfaces.TaskPrestartResponse, error) {
	d.note("prestart, kept " + req.Kept["n"])
	if d.refuse {
		return nil, errors.New("refused")
	}
	req.Keep(map[string]string{"n": req.Kept["n"] + "I"})
	d.restart = req.Lifecycle.Restart
	return &interfaces.TaskPrestartResponse{Env: map[string]string{"HOOK": req.Task.Name}}, req.WriteFile(
		interfaces.File{Path: "secrets/file", Data: []byte("here")})
}

func (d taskDiary) Poststart(_ context.Context, req *interfaces.TaskPoststartRequest) error {
	d.note("poststart " + req.Env.Get("HOOK"))
	return nil
}

func (d taskDiary) Exited(context.Context, interfaces.ExitResult) error { d.note("exited"); return nil }
func (d taskDiary) Stop(context.Context) error                          { d.note("stop"); return nil }

// simulated makes a runner of an allocation with one task, whose hooks keep a diary.
func simulated(t *testing.T) (interfaces.AllocRunner, *diary, string) {
	t.Helper()
	d, dir := &diary{}, filepath.Join(t.TempDir(), "alloc")
	id, group := "id", "g"
	job := &api.Job{ID: &id, Name: &id, Region: &id, Namespace: &id,
		TaskGroups: []*api.TaskGroup{{Name: &group, Tasks: []*api.Task{{Name: "t"}}}}}
	r := must.Get(simulate.New(interfaces.Config{
		Alloc: &api.Allocation{ID: id, Name: id, JobID: id, Job: job,
			TaskGroup: group}, Dir: dir, Logger: slog.New(slog.DiscardHandler),
		Hooks:     []interfaces.RunnerHook{d},
		TaskHooks: func(*api.Allocation, *api.Task) []interfaces.TaskHook { return []interfaces.TaskHook{taskDiary{d}} },
	}))(t)
	return r, d, dir
}

// started runs a runner, and returns once its task runs, with what waits for its end.
func started(t *testing.T, r interfaces.AllocRunner) (end func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- r.Run(t.Context()) }()
	for alloc := r.Alloc(); alloc.ClientStatus != api.AllocClientStatusRunning; {
		alloc = r.Wait(t.Context(), alloc.ModifyIndex)
	}
	return func() error { return <-done }
}

// TestSimulatedLife calls the hooks of a real life, in their order.
func TestSimulatedLife(t *testing.T) {
	r, d, dir := simulated(t)
	end := started(t, r)
	must.OK(t, r.RestartTask(t.Context(), "t"))
	if err := r.Signal(t.Context(), "", "HUP"); err != nil {
		t.Error(err)
	}
	for _, tc := range []struct {
		what      string
		err, want error
	}{
		{"a restart of no task", r.RestartTask(t.Context(), "x"), interfaces.ErrTaskNotFound},
		{"a signal to no task", r.Signal(t.Context(), "x", "HUP"), interfaces.ErrTaskNotFound},
		{"no signal", r.Signal(t.Context(), "t", "x"), interfaces.ErrUnknownSignal},
		{"a removal", r.Destroy(t.Context()), interfaces.ErrNotTerminal},
	} {
		if !errors.Is(tc.err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.what, tc.err, tc.want)
		}
	}
	if err := r.Stop(t.Context(), interfaces.StopRequest{}); err != nil {
		t.Error(err)
	}
	if err := end(); err != nil || !r.Terminal() || r.Alloc().ClientStatus != api.AllocClientStatusComplete ||
		r.Alloc().DesiredStatus != api.AllocDesiredStatusStop {
		t.Errorf("ended with %v: %+v", err, r.Alloc())
	}
	if err := d.restart(t.Context(), "late"); !errors.Is(err, interfaces.ErrTerminal) {
		t.Errorf("a restart after the end: %v, want ErrTerminal", err)
	}
	if err := r.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
	want := []string{"prerun id", "prestart, kept ", "poststart t", "exited", "prestart, kept I", "poststart t", "prekill",
		"exited", "stop",
		"postrun", "destroy"}
	if diff := cmp.Diff(want, d.read()); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
}

// TestSimulatedFailure ends an allocation whose task can't start.
func TestSimulatedFailure(t *testing.T) {
	r, d, _ := simulated(t)
	d.refuse = true
	if err := r.Run(t.Context()); err == nil || r.Alloc().ClientStatus != api.AllocClientStatusFailed || !r.Terminal() {
		t.Errorf("ended with %v: %+v", err, r.Alloc())
	}
	if diff := cmp.Diff([]string{"prerun id", "prestart, kept ", "prekill", "stop", "postrun"}, d.read()); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
}

// TestSimulatedDetach leaves the tasks as they are.
func TestSimulatedDetach(t *testing.T) {
	r, d, _ := simulated(t)
	end := started(t, r)
	r.Detach()
	if err := end(); !errors.Is(err, interfaces.ErrDetached) || r.Terminal() {
		t.Errorf("ended with %v, terminal %v; want ErrDetached", err, r.Terminal())
	}
	if calls := d.read(); slices.Contains(calls, "stop") || !slices.Contains(calls, "shutdown") {
		t.Errorf("hooks: %q", calls)
	}
}

// TestSimulatedServices are registered while what they would lead to runs, again with each restart, and stay when
// it is left.
func TestSimulatedServices(t *testing.T) {
	for _, detach := range []bool{false, true} {
		d := &diary{}
		provider := registrationtest.New("nomad", d.note)
		id, group := "id", "g"
		job := &api.Job{ID: &id, Name: &id, Region: &id, Namespace: &id, TaskGroups: []*api.TaskGroup{{
			Name:     &group,
			Services: []*api.Service{{Name: "web", Provider: "nomad", PortLabel: "http"}},
			Networks: []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http", To: 8080}}}},
			Tasks:    []*api.Task{{Name: "t", Services: []*api.Service{{Name: "of-${NOMAD_TASK_NAME}", Provider: "nomad"}}}},
		}}}
		r := must.Get(simulate.New(interfaces.Config{
			Alloc: &api.Allocation{ID: id, Name: id, JobID: id, Job: job, TaskGroup: group}, Dir: filepath.Join(t.TempDir(),
				"alloc"),
			Logger: slog.New(slog.DiscardHandler), ServiceProviders: []interfaces.ServiceProvider{provider},
		}))(t)
		end := started(t, r)
		for len(provider.Has()) < 2 { // the task's comes after its start
			proctest.Pause()
		}
		must.OK(t, r.RestartRunning(t.Context()))
		for _, s := range provider.Has() {
			if s.ServiceName == "web" && s.Port != 8080 {
				t.Errorf("web has the port %d", s.Port)
			}
		}
		want := []string{"+web", "+of-t", "-web", "+web", "-of-t", "+of-t"}
		if detach {
			r.Detach()
		} else {
			want = append(want, "-web", "-of-t")
			if err := r.Stop(t.Context(), interfaces.StopRequest{}); err != nil {
				t.Error(err)
			}
		}
		_ = end()
		if diff := cmp.Diff(want, d.read()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	}
}
