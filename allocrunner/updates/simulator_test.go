package updates_test

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// simulatedStep is the time between two changes of a simulated allocation.
const simulatedStep = 300 * time.Millisecond

// A simulator is a runner without processes: its tasks run for two steps, with an event in between, and end.
type simulator struct {
	interfaces.AllocRunner // what these tests don't call

	config interfaces.Config

	mu      sync.Mutex // guards what follows
	alloc   *api.Allocation
	changed chan struct{} // closed at the next change
}

var _ interfaces.Factory = newSimulator

func newSimulator(c interfaces.Config) (interfaces.AllocRunner, error) {
	return &simulator{config: c, alloc: c.Alloc, changed: make(chan struct{})}, nil
}

func (s *simulator) Run(ctx context.Context) error {
	for _, now := range [][3]string{{"pending", "pending", "Received"}, {"running", "running", "Started"},
		{"running", "running", "Signaling"}} {
		s.enter(now[0], now[1], now[2])
		select {
		case <-ctx.Done():
		case <-time.After(simulatedStep):
		}
	}
	s.enter("complete", "dead", "Terminated")
	return nil
}

// enter makes the next version: every task gets the state and the event.
func (s *simulator) enter(status, state, event string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := *s.alloc
	next.ClientStatus, next.ModifyIndex, next.TaskStates = status, next.ModifyIndex+1, map[string]*api.TaskState{}
	for _, task := range next.GetTaskGroup().Tasks {
		now := &api.TaskState{State: state}
		if was := s.alloc.TaskStates[task.Name]; was != nil {
			now.Events = slices.Clone(was.Events)
		}
		now.Events = append(now.Events, &api.TaskEvent{Type: event, Time: time.Now().UnixNano()})
		next.TaskStates[task.Name] = now
	}
	s.alloc = &next
	close(s.changed)
	s.changed = make(chan struct{})
	s.config.Updates.AllocUpdated(&next) // it never blocks
}

func (s *simulator) Alloc() *api.Allocation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.alloc
}

func (s *simulator) Wait(ctx context.Context, index uint64) *api.Allocation {
	for {
		s.mu.Lock()
		alloc, changed := s.alloc, s.changed
		s.mu.Unlock()
		if alloc.ModifyIndex > index || ctx.Err() != nil {
			return alloc
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

func (s *simulator) Terminal() bool { return s.Alloc().ClientTerminalStatus() }
