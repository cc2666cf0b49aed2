package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
)

// TestServiceManagerHearsOfChanges: READY=1 comes once, with the first version in which a task runs, and no line comes
// twice; what could not be sent is sent later.
func TestServiceManagerHearsOfChanges(t *testing.T) {
	var sent []string
	var fails error
	n := &notifier{send: func(state string) error {
		if fails == nil {
			sent = append(sent, state)
		}
		return fails
	}}
	name, group := "web", "web"
	alloc := func(client, desired string, states ...string) *api.Allocation {
		job := &api.Job{ID: &name, TaskGroups: []*api.TaskGroup{{Name: &group}}}
		a := &api.Allocation{ID: "id", Name: "web.web[0]", Job: job, TaskGroup: group, ClientStatus: client,
			DesiredStatus: desired, TaskStates: map[string]*api.TaskState{}}
		for i, s := range states {
			task := string(rune('a' + i))
			job.TaskGroups[0].Tasks = append(job.TaskGroups[0].Tasks, &api.Task{Name: task})
			a.TaskStates[task] = &api.TaskState{State: s}
		}
		return a
	}
	put := func(a *api.Allocation) {
		t.Helper()
		if err := n.PutAllocs(t.Context(), []*api.Allocation{a}); !errors.Is(err, fails) {
			t.Fatal(err)
		}
	}
	put(alloc("pending", "run", "pending", "pending"))
	put(alloc("pending", "run", "pending", "pending"))
	fails = errors.New("nobody reads")
	put(alloc("running", "run", "running", "pending"))
	fails = nil
	put(alloc("running", "run", "running", "pending"))
	put(alloc("running", "run", "running", "running"))
	put(alloc("running", "stop", "running", "dead"))
	put(alloc("complete", "stop", "dead", "dead"))
	parent := alloc("running", "run")
	parent.Job.ParameterizedJob, parent.ClientDescription = &api.ParameterizedJobConfig{}, "Waits for dispatches"
	put(parent)
	want := []string{
		"STATUS=web.web[0] pending, 0 of 2 tasks running, allocation id",
		"READY=1\nSTATUS=web.web[0] running, 1 of 2 tasks running, allocation id",
		"STATUS=web.web[0] running, 2 of 2 tasks running, allocation id",
		"STATUS=web.web[0] stopping, 1 of 2 tasks running, allocation id",
		"STATUS=web.web[0] complete, 0 of 2 tasks running, allocation id",
		"STATUS=web.web[0] running: Waits for dispatches, allocation id",
	}
	if !slices.Equal(sent, want) {
		t.Errorf("sent:\n%s\nwant:\n%s", strings.Join(sent, "\n"), strings.Join(want, "\n"))
	}
}

// TestNoSignOfLifeFromAnAgentThatHangs, and at least one within each interval from one that answers.
func TestNoSignOfLifeFromAnAgentThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		const within = 30 * time.Second
		var signs atomic.Int32
		var hangs atomic.Bool
		goesOn := make(chan struct{})
		go keepAlive(ctx, within, func() {
			if hangs.Load() {
				<-goesOn
			}
		}, func(string) error {
			signs.Add(1)
			return nil
		})
		during := func(d time.Duration) int32 {
			before := signs.Load()
			time.Sleep(d)
			synctest.Wait()
			return signs.Load() - before
		}
		for range 5 {
			if during(within) == 0 {
				t.Fatal("no sign of life")
			}
		}
		hangs.Store(true)
		if n := during(3 * within); n != 0 {
			t.Errorf("%d signs of life while it hangs", n)
		}
		hangs.Store(false)
		close(goesOn)
		if during(within) == 0 {
			t.Error("no sign of life when it goes on")
		}
		cancel()
		synctest.Wait()
	})
}
