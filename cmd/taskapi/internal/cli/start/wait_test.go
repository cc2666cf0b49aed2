package start_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/internal/same"
)

// guarded is what Say reads and writes while a test does: under synctest time passing is no synchronization.
type guarded struct {
	mu     sync.Mutex // guards the fields below
	said   bytes.Buffer
	alloc  *api.Allocation
	task   api.TaskState
	checks api.AllocCheckStatuses
	err    error
}

func (g *guarded) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.said.Write(p)
}

func (g *guarded) latest() (*api.Allocation, api.AllocCheckStatuses, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	alloc, state := *g.alloc, g.task
	alloc.TaskStates = map[string]*api.TaskState{"t": &state}
	return &alloc, maps.Clone(g.checks), g.err
}

func (g *guarded) change(do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	do()
}

func (g *guarded) check(id, status, output string) {
	g.change(func() {
		g.checks[id] = api.AllocCheckStatus{ID: id, Check: id, Service: "s", Status: status, Output: output}
	})
}

// TestAWaitSaysForWhat: a command that waits longer than two seconds says for what, once for each change.
func TestAWaitSaysForWhat(t *testing.T) {
	group := &api.TaskGroup{Name: new("g"), Tasks: []*api.Task{{Name: "t"}}, Services: []*api.Service{
		{Name: "s", Provider: "nomad", Checks: []api.ServiceCheck{{Name: "a"}, {Name: "b"}}}}}
	job := &api.Job{ID: new("j"), Type: new("service"), TaskGroups: []*api.TaskGroup{group}}
	job.Canonicalize()
	const begin = "taskapi: waiting until allocation 215ef685 is "
	for what, play := range map[string]func(*guarded, func(time.Duration, string)){
		start.WaitHealthy: func(g *guarded, expect func(time.Duration, string)) {
			expect(1900*time.Millisecond, "")
			expect(200*time.Millisecond, begin+"healthy: task \"t\" is pending: Task restarting?in 15s\n")
			expect(time.Minute, "")
			g.change(func() { g.task.State = "running" })
			expect(time.Second, begin+"healthy: its checks have no results\n")
			g.check("a", "success", "")
			g.check("b", "failure", "why\u202e\n")
			expect(time.Second, begin+"healthy: check \"b\" of service \"s\" is failure: why?\n")
			g.check("b", "failure", "why now")
			expect(time.Minute, "")
			g.check("b", "success", "")
			expect(time.Second, begin+"healthy: it is, and has to stay so for min_healthy_time, 10s\n")
			g.check("a", "failure", "")
			g.change(func() { g.err = errors.New("its taskapi is gone") })
			expect(time.Minute, "")
		},
		start.WaitComplete: func(g *guarded, expect func(time.Duration, string)) {
			expect(3*time.Second, begin+"complete: task \"t\" is pending, with 0 restarts\n")
			g.change(func() { g.task.State, g.task.Restarts = "running", 1 })
			expect(time.Second, begin+"complete: task \"t\" is running, with 1 restart\n")
			expect(time.Minute, "")
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancel(t.Context())
				defer end()
				g := &guarded{checks: api.AllocCheckStatuses{}, task: api.TaskState{State: "pending", Events: []*api.TaskEvent{
					{Type: api.TaskReceived}, {Type: "Other", DisplayMessage: "Task restarting\u202ein 15s"}}},
					alloc: &api.Allocation{ID: "215ef685-6b9e-3eaf-e74b-6b04f094ebca", TaskGroup: "g", Job: job}}
				go (&start.WaitOptions{What: what}).Say(ctx, g, g.latest)
				play(g, func(after time.Duration, want string) {
					t.Helper()
					time.Sleep(after)
					synctest.Wait()
					g.change(func() {
						same.As(t, want, g.said.String(), "said")
						g.said.Reset()
					})
				})
			})
		})
	}
}
