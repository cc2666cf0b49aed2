package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// TestMemory: the tests of this package fit a store without files, too.
func TestMemory(t *testing.T) {
	Run(t, func(testing.TB) interfaces.Store { return &memory{} })
}

// memory is a store in memory. It encodes what it holds as JSON, as a file does. Its zero value is empty.
type memory struct {
	mu     sync.Mutex // guards the fields below, and those of each state
	states map[string]*memoryState
}

var _ interfaces.Store = (*memory)(nil)

// Acquire takes ownership of an allocation's state.
func (m *memory) Acquire(id string) (interfaces.OwnedState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.states[id]
	if before != nil && !before.closed {
		return nil, interfaces.ErrStateInUse
	}
	s := &memoryState{mu: &m.mu}
	if before != nil {
		s.saved = before.saved
	}
	if m.states == nil {
		m.states = map[string]*memoryState{}
	}
	m.states[id] = s
	return s, nil
}

type memoryState struct {
	mu     *sync.Mutex
	saved  []byte // as JSON
	closed bool
}

func (s *memoryState) Load() (*interfaces.Saved, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	saved, err := s.load()
	if err == nil && saved.Alloc == nil {
		err = interfaces.ErrNoState
	}
	if err != nil {
		return nil, err
	}
	return saved, nil
}

func (s *memoryState) load() (*interfaces.Saved, error) {
	if s.closed {
		return nil, errors.New("the state is closed")
	}
	saved := &interfaces.Saved{}
	if s.saved == nil {
		return saved, nil
	}
	return saved, json.Unmarshal(s.saved, saved)
}

func (s *memoryState) Put(c interfaces.Change) error { return s.put(c, false) }

func (s *memoryState) Recreate(c interfaces.Change) error { return s.put(c, true) }

func (s *memoryState) put(c interfaces.Change, forget bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	saved, err := s.load()
	if err != nil {
		return err
	}
	if c.ID == "" || c.Alloc != nil && c.Alloc.ID != c.ID {
		return fmt.Errorf("a change of allocation %q has another one", c.ID)
	}
	if forget {
		saved = &interfaces.Saved{}
	}
	var job *api.Job
	if saved.Alloc != nil {
		job = saved.Alloc.Job
	}
	apply(saved, c)
	if saved.Alloc != nil && saved.Alloc.Job == nil {
		saved.Alloc.Job = job
	}
	saved.ShowTasks()
	s.saved, err = json.Marshal(saved)
	return err
}

// Close lets others own the state.
func (s *memoryState) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}
