package taskrunner

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/polltest"
)

// traced is a Starter that tells when an environment or a version of the allocation that it has given away is garbage.
type traced struct {
	ready
	begun chan string
	freed chan string
}

func (s *traced) trace(what string, addCleanup func(func(string), string)) {
	s.begun <- what
	addCleanup(func(what string) { s.freed <- what }, what)
}

func (s *traced) Alloc() *api.Allocation {
	alloc := &api.Allocation{ID: "a"}
	s.trace("allocation", func(f func(string), what string) { runtime.AddCleanup(alloc, f, what) })
	return alloc
}

func (s *traced) Prepare(context.Context) (*interfaces.TaskPrestartRequest, error) {
	return &interfaces.TaskPrestartRequest{
		Alloc: s.Alloc(), Task: testTask(), WriteFile: func(interfaces.File) error { return nil },
	}, nil
}

// tracedEnv is an environment that nobody reads.
type tracedEnv struct {
	interfaces.Env
	_ [64]byte // so that it shares its block of memory with nothing else
}

func (s *traced) Env(*interfaces.TaskPrestartRequest, map[string]string) interfaces.Env {
	env := &tracedEnv{}
	s.trace("environment", func(f func(string), what string) { runtime.AddCleanup(env, f, what) })
	return env
}

// keeping is a hook that keeps of its requests what it may.
type keeping struct {
	write     func(interfaces.File) error
	keep      func(map[string]string)
	lifecycle interfaces.TaskLifecycle
	called    chan struct{}
}

func (*keeping) Name() string { return "keeping" }

func (h *keeping) Prestart(
	_ context.Context, req *interfaces.TaskPrestartRequest,
) (*interfaces.TaskPrestartResponse, error) {
	h.write, h.keep, h.lifecycle = req.WriteFile, req.Keep, req.Lifecycle
	return &interfaces.TaskPrestartResponse{Env: map[string]string{"A": "b"}}, nil
}

func (h *keeping) Poststart(context.Context, *interfaces.TaskPoststartRequest) error {
	close(h.called)
	return nil
}

// TestRequestsOfHooksAreGarbage when the hooks have returned, though the task runs and they have kept the functions
// that came with them: an environment is some hundred kilobytes for a large group, and each start has a version of the
// allocation.
func TestRequestsOfHooksAreGarbage(t *testing.T) {
	hook := &keeping{called: make(chan struct{})}
	f := &frozen{thawed: make(chan struct{}), exited: make(chan struct{})}
	starter := &traced{ready: ready{f}, begun: make(chan string, 100), freed: make(chan string, 100)}
	r := newRunner(t, starter, Config{Hooks: []interfaces.TaskHook{hook}})
	close(f.thawed)
	r.Receive(interfaces.ScheduleRun)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(t.Context())
	}()
	r.Open()
	<-hook.called
	want := map[string]int{}
	for len(starter.begun) > 0 {
		want[<-starter.begun]++
	}
	if want["environment"] < 2 || want["allocation"] < 2 { // of Prestart and Poststart
		t.Errorf("given away: %v", want)
	}
	deadline := time.After(polltest.Deadline())
	for want["environment"]+want["allocation"] > 0 {
		runtime.GC()
		select {
		case what := <-starter.freed:
			want[what]--
		case <-time.After(time.Millisecond):
		case <-deadline:
			t.Fatalf("kept alive: %v", want)
		}
	}
	runtime.KeepAlive(hook)
	r.Kill(nil, AtOnce)
	r.Close()
	<-done
}
