package state_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
)

// onDisk is a state where the disk has its part in it.
func onDisk(b *testing.B) *state.DB { return open(b, b.TempDir()+"/"+state.FileName) }

// ordinary is an allocation with a job of 30 KB, and a task's record with as many events as are kept.
func ordinary(id string, n uint64) (*api.Allocation, interfaces.SavedTask) {
	a := alloc(id, n)
	a.Job = job("j")
	s := &api.TaskState{State: "running", Restarts: n}
	for i := range 10 {
		s.Events = append(s.Events, &api.TaskEvent{Type: "Restarting", Time: int64(i), DisplayMessage: strings.Repeat("m", 80),
			Details: map[string]string{"restart_reason": "Restart within policy", "start_delay": "15000000000"}})
	}
	return a, interfaces.SavedTask{State: s, Phase: "backoff"}
}

// perOp reports how many transactions, each of which waits twice for the disk, a call takes.
func perOp(b *testing.B, db *state.DB, before state.Stats, calls int) {
	b.ReportMetric(float64(db.Stats().Writes-before.Writes)/float64(calls), "writes/put")
}

// BenchmarkPut is a task's change, alone and beside 99 others.
func BenchmarkPut(b *testing.B) {
	for _, callers := range []int{1, 100} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			db := onDisk(b)
			a, _ := ordinary("a", 0)
			put(b, db, interfaces.Change{ID: "a", Alloc: a})
			before := db.Stats()
			var calls sync.WaitGroup
			b.ResetTimer()
			for c := range callers {
				name := fmt.Sprint("t", c)
				calls.Go(func() {
					for i := c; i < b.N; i += callers {
						_, task := ordinary("a", uint64(i+1))
						put(b, db, interfaces.Change{ID: "a", Tasks: map[string]interfaces.SavedTask{name: task}})
					}
				})
			}
			calls.Wait()
			b.StopTimer()
			perOp(b, db, before, b.N)
		})
	}
}
