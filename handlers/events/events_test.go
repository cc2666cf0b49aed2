package events

import (
	"fmt"
	"maps"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// TestEventsAreBounded: what is kept for late readers has a bound in number, and in task states.
func TestEventsAreBounded(t *testing.T) {
	states := map[string]*api.TaskState{}
	for i := range 500 {
		states[fmt.Sprint(i)] = &api.TaskState{State: "running"}
	}
	for name, c := range map[string]struct {
		states map[string]*api.TaskState
		want   int
	}{
		"small":           {nil, 256},
		"500 tasks":       {states, 8},
		"5,000 of a task": {manyStates(5000), 1},
	} {
		t.Run(name, func(t *testing.T) {
			events := New()
			for index := range uint64(300) {
				alloc := &api.Allocation{ID: "a", ModifyIndex: 40 + index, TaskStates: c.states}
				if err := events.PutAllocs(t.Context(), []*api.Allocation{alloc}); err != nil {
					t.Fatal(err)
				}
			}
			if got := len(events.kept); got != c.want {
				t.Errorf("%d events are kept, want %d", got, c.want)
			}
		})
	}
}

func manyStates(n int) map[string]*api.TaskState {
	return maps.Collect(func(yield func(string, *api.TaskState) bool) {
		for i := range n {
			if !yield(fmt.Sprint(i), nil) {
				return
			}
		}
	})
}
