package allocrunner_test

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// memory is a State that forgets nothing while the test runs, and fails on request. What it holds has been through
// JSON, as in a file.
type memory struct {
	mu       sync.Mutex // guards the fields below
	alloc    []byte
	tasks    map[string][]byte
	checks   []byte
	terminal bool
	kill     time.Time
	puts     int
	full     bool // Put fails
}

func (m *memory) Put(c interfaces.Saved) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.full {
		return errors.New("no space left on device")
	}
	m.puts++
	if c.Alloc != nil {
		alloc := *c.Alloc
		alloc.TaskStates = nil
		m.alloc = encode(&alloc)
	}
	for name, task := range c.Tasks {
		if m.tasks == nil {
			m.tasks = map[string][]byte{}
		}
		m.tasks[name] = encode(task)
	}
	if c.Checks != nil {
		m.checks = encode(c.Checks)
	}
	m.terminal = m.terminal || c.Terminal
	if !c.KillAfter.IsZero() {
		m.kill = c.KillAfter
	}
	return nil
}

func (m *memory) setFull(full bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.full = full
}

func (m *memory) saved() *interfaces.Saved {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &interfaces.Saved{Tasks: map[string]interfaces.SavedTask{}, Terminal: m.terminal, KillAfter: m.kill}
	decode(m.alloc, &s.Alloc)
	s.Alloc.TaskStates = map[string]*api.TaskState{}
	for name, data := range maps.All(m.tasks) {
		var task interfaces.SavedTask
		decode(data, &task)
		s.Tasks[name] = task
		s.Alloc.TaskStates[name] = task.State
	}
	if m.checks != nil {
		decode(m.checks, &s.Checks)
	}
	return s
}

func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

func decode(data []byte, v any) {
	if err := json.Unmarshal(data, v); err != nil {
		panic(err)
	}
}

type config = interfaces.Config

// write makes a file below the allocation directory.
func (r *running) write(path, text string) {
	r.t.Helper()
	must.OK(r.t, os.WriteFile(filepath.Join(r.dir, path), []byte(text), 0o666))
}

// untilGone waits for a process to have ended.
func (r *running) untilGone(pid string) {
	r.t.Helper()
	ended := func() bool {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	}
	if !polltest.Until(ended) {
		r.t.Fatalf("process %s does not end", pid)
	}
}
