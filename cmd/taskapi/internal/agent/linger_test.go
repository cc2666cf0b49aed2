package agent

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
)

// noUpdates drops every version.
type noUpdates struct{}

func (noUpdates) AllocUpdated(*api.Allocation) {}

// version returns an allocation with one task.
func version(index uint64, client, task string) *api.Allocation {
	return &api.Allocation{ModifyIndex: index, ClientStatus: client,
		TaskStates: map[string]*api.TaskState{"t": {State: task}}}
}

// TestLinger: an allocation that has ended is there for clients that are, and for a bounded time.
func TestLinger(t *testing.T) {
	operator, task := auth.Owner{}, auth.Owner{Task: "t"}
	for name, c := range map[string]struct {
		before func(a *audience) // the end, which has index 7
		during func(a *audience) // in another goroutine
		open   func(since time.Duration) int
		leaves bool

		replaced bool // another version of the job is to follow
		want     time.Duration
	}{
		"nobody":                 {},
		"a client that has gone": {before: func(a *audience) { a.answered(operator, 3) }},
		"a client that holds its connection and asks no more": {
			before: func(a *audience) { a.answered(operator, 3) },
			open:   func(time.Duration) int { return 1 },
			want:   lingerFor,
		},
		"a client that asked long ago": {
			before: func(a *audience) { a.answered(operator, 3); time.Sleep(lingerFor) },
			open:   func(time.Duration) int { return 1 },
		},
		"a task's": {
			before: func(a *audience) { a.stopping(); a.answered(task, 3) },
			open:   func(time.Duration) int { return 1 },
		},
		"a client that leaves after a second": {
			before: func(a *audience) { a.answered(operator, 3) },
			open: func(since time.Duration) int {
				if since < time.Second {
					return 1
				}
				return 0
			},
			want: time.Second,
		},
		"one that asks each second, for ever": {
			before: func(a *audience) { a.answered(operator, 3) },
			during: func(a *audience) {
				for range 20 {
					a.answered(operator, 7)
					time.Sleep(time.Second)
				}
			},
			open: func(time.Duration) int { return 1 },
			want: lingerAtMost,
		},
		"one that has requested the end, with a new connection for each request": {
			before: func(a *audience) { a.stopping(); a.answered(operator, 3) },
			during: func(a *audience) { time.Sleep(2 * time.Second); a.answered(operator, 6) },
			want:   2*time.Second + lingerFor, // 6 is from before the end
		},
		"one that has requested the end, and read it": {
			before: func(a *audience) { a.stopping(); a.answered(operator, 3) },
			during: func(a *audience) { time.Sleep(2 * time.Second); a.answered(operator, 7) },
			want:   2 * time.Second,
		},
		"one that has requested the end, and read it as it came": {
			before: func(a *audience) { a.stopping(); a.answered(operator, 7) },
		},
		"one that follows an allocation that is replaced, and asks again": {
			before:   func(a *audience) { a.answered(operator, 6) },
			during:   func(a *audience) { time.Sleep(time.Second / 2); a.answered(operator, 8) },
			open:     func(time.Duration) int { return 1 },
			replaced: true,
			want:     time.Second / 2,
		},
		"one that holds its connection to an allocation that is replaced": {
			before:   func(a *audience) { a.answered(operator, 6) },
			open:     func(time.Duration) int { return 1 },
			replaced: true,
			want:     replacedAtMost,
		},
		"one that has read the end of an allocation that is replaced": {
			before:   func(a *audience) { a.answered(operator, 7) },
			open:     func(time.Duration) int { return 1 },
			replaced: true,
		},
		"a signal": {
			before: func(a *audience) { a.answered(operator, 3) },
			open:   func(time.Duration) int { return 1 },
			leaves: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, leaving := &audience{Updates: noUpdates{}}, make(chan struct{})
				if c.before != nil {
					c.before(a)
				}
				a.AllocUpdated(version(4, "complete", "dead")) // to be restarted
				a.AllocUpdated(version(5, "running", "running"))
				a.AllocUpdated(version(6, "complete", "running"))
				a.AllocUpdated(version(7, "complete", "dead"))
				a.AllocUpdated(version(8, "complete", "dead"))
				if c.leaves {
					close(leaving)
				}
				var clients sync.WaitGroup
				defer clients.Wait()
				if c.during != nil {
					clients.Go(func() { c.during(a) })
				}
				began := time.Now()
				a.linger(t.Context(), c.replaced, func() int {
					if c.open == nil {
						return 0
					}
					return c.open(time.Since(began))
				}, leaving)
				if took := time.Since(began); took < c.want || took > c.want+2*lingerPause {
					t.Errorf("lingered %v, want %v", took, c.want)
				}
			})
		})
	}
}
