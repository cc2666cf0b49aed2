package top

import (
	"errors"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/output"
)

// presence says whether a taskapi runs the allocation now.
type presence int

const (
	connecting presence = iota // nothing has been seen yet
	running
	away  // no taskapi answers; what is shown was seen before
	ended // nothing of the allocation runs any more
)

// watch is what is known of an allocation.
type watch struct {
	Found
	source   Source
	presence presence
	since    time.Time // of presence
	why      string    // of away and connecting

	alloc   *api.Allocation // nil when nothing has been seen
	usage   *api.AllocResourceUsage
	checks  api.AllocCheckStatuses
	refused map[string][]*api.TaskEvent // by task
	past    map[string]*history         // by task; that of the allocation has an empty name

	reading, polling bool // a command does it now
	again            bool // it has ended and is to be looked at, since it may be run again
	gone             bool // it has been removed
}

func newWatch(f Found, now time.Time) *watch {
	return &watch{Found: f, source: f.Open(), since: now, past: map[string]*history{}}
}

// name returns the allocation's name, its ID when there is no other.
func (w *watch) name() string {
	switch {
	case w.alloc == nil:
		return output.ShortID(w.ID)
	case w.alloc.Name == "":
		return w.alloc.JobID + "." + w.alloc.TaskGroup
	}
	return w.alloc.Name
}

func (w *watch) become(p presence, now time.Time) {
	if w.presence != p {
		w.presence, w.since = p, now
	}
}

func (w *watch) found(f Found, now time.Time) {
	switch {
	case f.Ended == nil:
		w.again = w.presence == ended
	case w.presence != ended || w.alloc == nil:
		w.saw(*f.Ended, now)
	}
}

func (w *watch) saw(s Snapshot, now time.Time) {
	w.alloc = s.Alloc
	if !s.Ended {
		w.become(running, now)
		return
	}
	w.become(ended, now)
	w.usage = nil
	if s.Checks != nil {
		w.checks = s.Checks
	}
}

// failed takes over that no taskapi answers. saved is the allocation as it was saved last, nil if that is not known.
func (w *watch) failed(saved *api.Allocation, err error, now time.Time) {
	if saved != nil {
		w.alloc = saved
	}
	if w.presence == running || saved != nil {
		w.become(away, now)
	}
	w.why = err.Error()
}

// polled takes over the usage, the checks and the refusals. Values that could not be read stay as they were.
func (w *watch) polled(p pollMsg, now time.Time) {
	if w.presence == ended {
		return
	}
	if p.usageErr == nil {
		w.usage = p.usage
		w.remember(now)
	} else if errors.Is(p.usageErr, ErrUnavailable) {
		w.usage = nil
	}
	if p.checksErr == nil {
		w.checks = p.checks
	}
	if p.refused != nil {
		w.refused = p.refused
	}
}

func (w *watch) remember(now time.Time) {
	if w.usage == nil {
		return
	}
	add := func(name string, u *api.ResourceUsage) {
		if cpu, memory := usageOf(u); cpu >= 0 {
			if w.past[name] == nil {
				w.past[name] = &history{}
			}
			w.past[name].add(now, cpu, memory)
		}
	}
	add("", w.usage.ResourceUsage)
	for name, u := range w.usage.Tasks {
		if u != nil && w.alloc != nil && w.alloc.TaskStates[name] != nil && w.alloc.TaskStates[name].State == "running" {
			add(name, u.ResourceUsage)
		}
	}
}

// figures are what an allocation uses as a whole.
type figures struct {
	running, tasks, passing, checked int
	restarts                         uint64
	cpu                              float64 // negative when nothing is known
	memory                           uint64
	limit                            int64 // of the memory of all tasks that run; 0 if one has none
}

func (w *watch) figures() (f figures) {
	f.cpu = -1
	if w.alloc != nil && !w.isParent() {
		for _, name := range taskNames(w.alloc) {
			f.tasks++
			if s := w.alloc.TaskStates[name]; s != nil {
				f.restarts += s.Restarts
				if s.State == "running" && w.presence != ended {
					f.running++
				}
			}
		}
	}
	for _, c := range w.checks {
		f.checked++
		if c.Status == passingStatus {
			f.passing++
		}
	}
	if w.usage != nil && w.presence == running {
		f.cpu, f.memory = usageOf(w.usage.ResourceUsage)
		for name := range w.usage.Tasks {
			_, limit := output.Granted(w.alloc, name)
			if f.limit += limit; limit == 0 {
				f.limit = 0
				break
			}
		}
	}
	return f
}

// state returns the allocation's state in a word or two, and how they are shown.
func (w *watch) state(now time.Time) (words string, mark style) {
	switch w.presence {
	case connecting:
		if w.why != "" {
			return "unknown", badStyle
		}
		return "connecting", faintStyle
	case away:
		return "AWAY " + output.Duration(now.Sub(w.since)), badStyle
	case ended:
		return stateMark(w.alloc.ClientStatus)
	}
	if w.alloc.DesiredStatus == "stop" && !w.alloc.ClientTerminalStatus() {
		return "stopping", warnStyle
	}
	words, mark = stateMark(w.alloc.ClientStatus)
	if d := w.alloc.DeploymentStatus; d != nil && d.Healthy != nil {
		if !*d.Healthy {
			return words + " UNHEALTHY", badStyle
		}
		words += " healthy"
	}
	return words, mark
}

func stateMark(state string) (string, style) {
	word, _, _ := strings.Cut(state, " ")
	switch output.StatusColor(word) {
	case output.Green:
		return state, goodStyle
	case output.Red:
		return state, badStyle
	case output.Yellow:
		return state, warnStyle
	case output.Dim:
		return state, faintStyle
	}
	return state, plainStyle
}

// ports returns the ports of the allocation, or those of a task, by portOwners.
func (w *watch) ports(task string, owners map[string]string) string {
	if w.alloc == nil || w.alloc.AllocatedResources == nil {
		return ""
	}
	var all []string
	for _, p := range w.alloc.AllocatedResources.Shared.Ports {
		if task == "" || task == owners[p.Label] {
			all = append(all, fmt.Sprintf("%s %d", p.Label, p.Value))
		}
	}
	return strings.Join(all, ", ")
}

// resume begins the commands that keep a watch up to date, as far as they do not run. Only what is in sight is polled.
func (m *Model) resume() tea.Cmd {
	var cmds []tea.Cmd
	for _, w := range m.watches {
		inSight := m.inside == nil || m.inside.watch == w
		if w.gone || w.presence == ended && !w.again || !inSight && !w.reading && w.alloc == nil {
			continue
		}
		if !w.reading {
			w.reading, w.again = true, false
			cmds = append(cmds, m.readAllocation(w, 0, 0))
		}
		if !w.polling && inSight && w.presence != ended {
			w.polling = true
			cmds = append(cmds, m.poll(w, 0))
		}
	}
	return tea.Batch(cmds...)
}
