package top

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// task is a row of the table.
type task struct {
	name     string
	place    int // in the job
	state    string
	bad      bool // it has failed
	passing  int  // checks
	checks   int
	cpu      float64 // percent of one processor; negative when nothing is known
	memory   uint64  // bytes
	restarts uint64
	up       time.Duration // of one that runs
}

// orders are those that the table can have.
var orders = []struct {
	name    string
	compare func(a, b task) int
}{
	{"the job", func(a, b task) int { return a.place - b.place }},
	{"CPU", func(a, b task) int { return cmp.Compare(b.cpu, a.cpu) }},
	{"memory", func(a, b task) int { return cmp.Compare(b.memory, a.memory) }},
	{"restarts", func(a, b task) int { return cmp.Compare(b.restarts, a.restarts) }},
	{"name", func(a, b task) int { return strings.Compare(a.name, b.name) }},
}

// arrange makes the rows of the table, and keeps the chosen task.
func (m *Model) arrange() {
	if m.alloc == nil {
		return
	}
	m.tasks = m.tasks[:0]
	passing, checks := map[string]int{}, map[string]int{} // by task; those of the group count under an empty name
	for _, c := range m.checks {
		checks[c.Task]++
		if c.Status == passingStatus {
			passing[c.Task]++
		}
	}
	for place, name := range taskNames(m.alloc) {
		t := task{name: name, place: place, state: "pending", passing: passing[name], checks: checks[name], cpu: -1}
		if s := m.alloc.TaskStates[name]; s != nil {
			t.state, t.bad, t.restarts = stateWord(s), s.Failed, s.Restarts
			if s.State == "running" && !s.StartedAt.IsZero() {
				t.up = max(m.now.Sub(s.StartedAt), 0)
			}
		}
		if m.usage != nil && m.usage.Tasks[name] != nil && t.up > 0 {
			t.cpu, t.memory = usageOf(m.usage.Tasks[name].ResourceUsage)
		}
		m.tasks = append(m.tasks, t)
	}
	m.sort()
}

// sort brings the rows into their order. The chosen task stays chosen, the first one when there is none.
func (m *Model) sort() {
	slices.SortStableFunc(m.tasks, orders[m.order].compare)
	m.cursor = max(slices.IndexFunc(m.tasks, func(t task) bool { return t.name == m.chosen }), 0)
	if len(m.tasks) > 0 {
		m.chosen = m.tasks[m.cursor].name
	}
}

// taskNames returns the names of the tasks as the job has them, and then those that it has no more.
func taskNames(alloc *api.Allocation) []string {
	var names []string
	if group := alloc.GetTaskGroup(); group != nil {
		for _, t := range group.Tasks {
			names = append(names, t.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(alloc.TaskStates)) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// stateWord returns a task's state in a word.
func stateWord(s *api.TaskState) string {
	switch {
	case s.State == "dead" && s.Failed:
		return "failed"
	case s.State == "dead":
		return "complete"
	case s.State == "pending" && s.Restarts > 0:
		return "restarting"
	}
	return s.State
}

// usageOf returns the processor time in percent of one processor, and the memory in bytes.
func usageOf(u *api.ResourceUsage) (cpu float64, memory uint64) {
	cpu = -1
	if u == nil {
		return cpu, 0
	}
	if u.CpuStats != nil {
		cpu = max(u.CpuStats.Percent, 0)
	}
	if s := u.MemoryStats; s != nil {
		memory = cmp.Or(s.RSS, s.Usage)
	}
	return cpu, memory
}

// percent shows a share of one processor in at most five characters.
func percent(share float64) string {
	switch {
	case share < 0:
		return "-"
	case share < 99.95:
		return fmt.Sprintf("%.1f%%", share)
	}
	return fmt.Sprintf("%.0f%%", min(share, 999999))
}
