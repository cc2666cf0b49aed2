package allocrunner_test

import (
	"context"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/same"
)

// slow is a hook of an allocation and of its task, whose calls wait for permission.
type slow struct {
	once        *sync.Once
	called, may chan struct{}
}

func newSlow() slow { return slow{new(sync.Once), make(chan struct{}), make(chan struct{})} }

func (slow) Name() string { return "slow" }

func (s slow) wait() {
	s.once.Do(func() { close(s.called) })
	<-s.may
}

func (s slow) Prerun(context.Context, *interfaces.RunnerPrerunRequest) error { s.wait(); return nil }

type slowTask struct{ slow }

func (s slowTask) Prestart(context.Context, *interfaces.TaskPrestartRequest) (*interfaces.TaskPrestartResponse, error) {
	s.wait()
	return &interfaces.TaskPrestartResponse{}, nil
}

// watchedContext is a context that says when somebody waits for its end.
type watchedContext struct {
	context.Context
	waited func()
}

func (w watchedContext) Done() <-chan struct{} {
	w.waited()
	return w.Context.Done()
}

// TestRequestsWaitForAResumption: what is requested of tasks that run, while another taskapi resumes them, is done and
// not refused.
func TestRequestsWaitForAResumption(t *testing.T) {
	t.Parallel()
	requests := map[string]func(context.Context, interfaces.AllocRunner) error{
		"restart":           func(ctx context.Context, r interfaces.AllocRunner) error { return r.RestartTask(ctx, "main") },
		"restart what runs": func(ctx context.Context, r interfaces.AllocRunner) error { return r.RestartRunning(ctx) },
		"restart all":       func(ctx context.Context, r interfaces.AllocRunner) error { return r.RestartAll(ctx) },
		"signal": func(ctx context.Context, r interfaces.AllocRunner) error {
			return r.Signal(ctx, "main", "SIGCONT")
		},
		"signal to all": func(ctx context.Context, r interfaces.AllocRunner) error {
			return r.Signal(ctx, "", "SIGCONT")
		},
		"exec": execTrue,
		"update": func(ctx context.Context, r interfaces.AllocRunner) error {
			return r.Update(ctx, r.Alloc().Job)
		},
	}
	for name, request := range requests {
		t.Run(name, func(t *testing.T) { testRequestDuringAResumption(t, name, request, true) })
		t.Run(name+", unsaved", func(t *testing.T) { testRequestDuringAResumption(t, name, request, false) })
	}
}

// testRequestDuringAResumption requests something while a task is resumed. The saved state may not have its process.
func testRequestDuringAResumption(
	t *testing.T, name string, request func(context.Context, interfaces.AllocRunner) error, saved bool,
) {
	t.Helper()
	t.Parallel()
	_, cfg, _ := leftRunning(t)
	alloc, task := newSlow(), newSlow()
	if !saved {
		main := cfg.Saved.Tasks["main"]
		main.Phase, main.Handle = "starting", nil
		cfg.Saved.Tasks["main"] = main
	}
	cfg.Hooks = []interfaces.RunnerHook{alloc}
	cfg.TaskHooks = func(*api.Allocation, *api.Task) []interfaces.TaskHook {
		return []interfaces.TaskHook{slowTask{task}}
	}
	r := begin(t, cfg)
	ask := func() <-chan error { // returns when the request waits, or has been answered
		waits := make(chan struct{})
		answer := make(chan error, 1)
		once := sync.OnceFunc(func() { close(waits) })
		go func() {
			defer once()
			answer <- request(watchedContext{t.Context(), once}, r.runner)
		}()
		<-waits
		return answer
	}
	<-alloc.called
	answers := []<-chan error{ask()}
	close(alloc.may)
	<-task.called
	if name == "exec" { // which needs what the hooks of the task give
		answers = append(answers, ask())
	}
	close(task.may)
	for _, answer := range answers {
		same.Error(t, nil, <-answer)
	}
}

// TestPauseStateDuringAResumption: what was saved for a task holds while another taskapi resumes it.
func TestPauseStateDuringAResumption(t *testing.T) {
	t.Parallel()
	for want, saved := range map[interfaces.ScheduleState]interfaces.SavedTask{
		interfaces.ScheduleForcedRun: {Outside: true, Override: interfaces.ScheduleForcedRun},
		interfaces.SchedulePause:     {Outside: true},
		interfaces.ScheduleRun:       {},
	} {
		t.Run(string(want), func(t *testing.T) {
			t.Parallel()
			_, cfg, _ := leftRunning(t)
			alloc := newSlow()
			task := cfg.Saved.Tasks["main"]
			task.Outside, task.Override = saved.Outside, saved.Override
			cfg.Saved.Tasks["main"] = task
			cfg.Hooks = []interfaces.RunnerHook{alloc}
			r := begin(t, cfg)
			<-alloc.called
			if got, err := r.runner.PauseState("main"); err != nil || got != want {
				t.Errorf("the schedule's state is %q, %v; want %q", got, err, want)
			}
			close(alloc.may)
		})
	}
}

func execTrue(ctx context.Context, r interfaces.AllocRunner) error {
	s, err := r.Exec(ctx, interfaces.ExecRequest{Task: "main", Command: []string{"/bin/true"}})
	if err != nil {
		return err
	}
	defer s.Close()
	_, err = s.Wait()
	return err
}
