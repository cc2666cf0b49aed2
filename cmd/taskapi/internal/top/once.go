package top

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"

	"taskapi/internal/slice"
)

// Allocation is an allocation with its CPU and memory, for programs.
type Allocation struct {
	ID            string
	Name          string
	DataDir       string `json:",omitempty"` // where there are several
	Status        string // pending, running, complete or failed
	Healthy       *bool  // nil when it is not known
	Error         string `json:",omitempty"` // why no taskapi answers
	TasksRunning  int
	ChecksPassing int
	Checks        int
	CPUPercent    *float64 // of one processor; nil when it is not known
	RSS           *uint64  // bytes
	Restarts      uint64
	Ports         map[string]int
	Created       time.Time
	Tasks         []Task
}

// Task is a task with its CPU and memory.
type Task struct {
	Name       string
	State      string // as the screen has it
	CPUPercent *float64
	RSS        *uint64
	Restarts   uint64
	Started    *time.Time // of one that runs
	PIDs       []int
	Command    string
}

// Once is all that a screen shows at a moment.
type Once struct {
	model *Model
	shown []*watch // in the order of the screen
}

// Look looks at all allocations, or at the one with the ID c.Start. Errors: those of c.Find, also beside an answer; an
// allocation that can't be read is an answer.
func Look(ctx context.Context, c Config) (*Once, error) {
	w := newWork(ctx)
	defer w.Close()
	m := newModel(c, w)
	m.still = true
	defer m.Close()
	all, err := c.Find(ctx)
	if c.Start != "" {
		all = slices.DeleteFunc(all, func(f Found) bool { return f.ID != c.Start })
	}
	m.found(foundMsg{all: all, err: err})
	var looks sync.WaitGroup
	limit := make(chan struct{}, crowd)
	for _, w := range m.watches {
		if w.presence == ended {
			continue
		}
		looks.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			bounded, cancel := context.WithTimeout(ctx, lookTimeout)
			defer cancel()
			s, err := w.source.Allocation(bounded, 0)
			if err != nil {
				w.failed(s.Alloc, err, m.now)
				return
			}
			w.saw(s, m.now)
			if w.presence == running {
				p := pollMsg{}
				p.usage, p.usageErr = w.source.Stats(bounded)
				p.checks, p.checksErr = w.source.Checks(bounded)
				w.polled(p, m.now)
			}
		})
	}
	looks.Wait()
	m.list.arrange()
	o := &Once{model: m, shown: slice.Map(m.list.rows, func(r row) *watch { return r.watch })}
	if m.inside != nil {
		m.inside.arrange()
	}
	return o, err
}

// Text returns a screen with all of its rows, width wide. painted keeps its styles.
func (o *Once) Text(width int, painted bool) string {
	m := o.model
	m.width = width
	rows := []string{m.titleRow()}
	var heading string
	var lines []string
	if s := m.inside; s != nil {
		heading, lines = tableOf(m, m.taskColumns(s.watch), s.rows, width, -1, plainStyle, &s.grown)
		rows = append(rows, s.summary())
	} else {
		heading, lines = tableOf(m, m.list.listColumns(), m.list.rows, width, -1, plainStyle, &m.list.grown)
		rows = append(rows, m.list.summary())
		if len(lines) == 0 {
			heading, lines = m.paint(faintStyle, " "+m.list.nothing()), nil
		}
	}
	rows = append(append(rows, heading), lines...)
	var text strings.Builder
	for _, row := range rows {
		row = ansi.TruncateWc(row, width, "")
		if !painted {
			row = strings.TrimRight(ansi.Strip(row), " ")
		}
		text.WriteString(row + "\n")
	}
	return text.String()
}

// Allocations returns the same for programs.
func (o *Once) Allocations() []Allocation {
	all := make([]Allocation, 0, len(o.shown))
	for _, w := range o.shown {
		f := w.figures()
		a := Allocation{ID: w.ID, Name: w.name(), DataDir: w.Dir, Status: "unknown", TasksRunning: f.running,
			ChecksPassing: f.passing, Checks: f.checked, Restarts: f.restarts, Ports: map[string]int{}, Tasks: []Task{}}
		if w.presence == connecting || w.presence == away {
			a.Error = w.why
		}
		if f.cpu >= 0 {
			a.CPUPercent, a.RSS = &f.cpu, &f.memory
		}
		if w.alloc != nil {
			a.Status, a.Created = w.alloc.ClientStatus, time.Unix(0, w.alloc.CreateTime)
			if d := w.alloc.DeploymentStatus; d != nil {
				a.Healthy = d.Healthy
			}
			if r := w.alloc.AllocatedResources; r != nil {
				for _, p := range r.Shared.Ports {
					a.Ports[p.Label] = p.Value
				}
			}
		}
		a.Tasks = append(a.Tasks, slice.Map(o.model.tasksOf(w), w.taskOf)...) // never null
		all = append(all, a)
	}
	return all
}

func (w *watch) taskOf(t task) Task {
	out := Task{Name: t.name, State: t.state, Restarts: t.restarts, Command: t.command, PIDs: []int{}}
	if t.cpu >= 0 {
		out.CPUPercent, out.RSS = &t.cpu, &t.memory
		for pid := range w.usage.Tasks[t.name].Pids {
			var n int
			if _, err := fmt.Sscan(pid, &n); err == nil {
				out.PIDs = append(out.PIDs, n)
			}
		}
		slices.Sort(out.PIDs)
	}
	if t.up > 0 {
		out.Started = &w.alloc.TaskStates[t.name].StartedAt
	}
	return out
}
