package state_test

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
)

// BenchmarkPut puts a task's change, with as many events as are kept, into a state with a job of 30 KB.
func BenchmarkPut(b *testing.B) {
	db := open(b, b.TempDir()+"/"+state.FileName)
	a := alloc("a", 0)
	a.Job = job("j")
	put(b, db, interfaces.Saved{Alloc: a})
	s := &api.TaskState{State: "running"}
	for i := range 10 {
		s.Events = append(s.Events, &api.TaskEvent{Type: "Restarting", Time: int64(i),
			DisplayMessage: strings.Repeat("m", 80),
			Details:        map[string]string{"restart_reason": "Restart within policy", "start_delay": "15000000000"}})
	}
	for b.Loop() {
		s.Restarts++
		put(b, db, interfaces.Saved{Tasks: map[string]interfaces.SavedTask{"t": {State: s, Phase: "backoff"}}})
	}
}
