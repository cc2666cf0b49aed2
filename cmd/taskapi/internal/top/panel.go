package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/output"
	"taskapi/cmd/taskapi/internal/top/tasktext"
)

// panelKind is what the lower part of the screen shows.
type panelKind int

const (
	outputPanel panelKind = iota
	eventsPanel
	checksPanel
	detailsPanel
	panelCount
)

func (k panelKind) String() string { return [...]string{"Output", "Events", "Checks", "Details"}[k] }

// focus is the part of the screen that the arrows move in.
type focus int

const (
	onTasks focus = iota
	onPanel
)

// panel shows lines of a text, from one on.
type panel struct {
	text   tasktext.Buffer
	top    int    // number of the first line shown; see buffer
	column int    // first column shown
	follow bool   // the end stays in sight
	note   string // what there is to say of the text
	match  int    // number of the line of the current match, meaningful with a query
	rows   int    // that were shown last
	wraps  bool   // a line may take several rows
}

// fit moves what is shown to where there are lines. rows is how many fit.
func (p *panel) fit(rows int) {
	p.rows = rows
	last := max(p.text.After()-rows, p.text.First())
	if p.follow {
		p.top = last
	}
	p.top = min(max(p.top, p.text.First()), last)
}

// scroll moves by lines; at the end it follows.
func (p *panel) scroll(by int) {
	p.top += by
	p.follow = p.top >= p.text.After()-p.rows
	p.fit(p.rows)
}

// search looks for a text, and shows the last match that is not below what is shown.
func (p *panel) search(query string) (found bool) {
	p.text.Search(query)
	matches := p.text.Matches()
	if len(matches) == 0 {
		return false
	}
	i, _ := slices.BinarySearch(matches, p.top+p.rows)
	p.show(matches[(i+len(matches)-1)%len(matches)])
	return true
}

// next shows another match: the next one downwards, or upwards for by -1. It goes around, and reports that.
func (p *panel) next(by int) (found, around bool) {
	matches := p.text.Matches()
	if len(matches) == 0 {
		return false, false
	}
	i, exact := slices.BinarySearch(matches, p.match)
	switch {
	case by < 0:
		i--
	case exact:
		i++
	}
	around = i < 0 || i >= len(matches)
	p.show(matches[(i+len(matches))%len(matches)])
	return true, around
}

func (p *panel) show(line int) {
	p.match = line
	if line < p.top || line >= p.top+p.rows {
		p.top = line - p.rows/2
	}
	if p.wraps { // its place on the screen depends on the lines before it
		p.top = line
	}
	p.follow = false
	p.fit(p.rows)
}

// position says where what is shown stands in the text, and which match is the current one.
func (p *panel) position() string {
	if n := len(p.text.Matches()); p.text.Query() != "" {
		i, exact := slices.BinarySearch(p.text.Matches(), p.match)
		if !exact {
			return fmt.Sprintf("%d matches", n)
		}
		return fmt.Sprintf("match %d of %d", i+1, n)
	}
	switch {
	case p.follow:
		return "following"
	case p.text.Len() <= p.rows:
		return ""
	}
	return fmt.Sprintf("%d of %d", min(p.top+p.rows, p.text.After())-p.text.First(), p.text.Len())
}

// passingStatus is that of a check whose last run was good.
const passingStatus = "success"

// eventLines returns the events of a task, or of all for an empty name, and what was refused, in the order of their
// times.
func (m *Model) eventLines(w *watch, task string) []string {
	if w == nil || w.alloc == nil {
		return nil
	}
	type event struct {
		task string
		*api.TaskEvent
	}
	var events []event
	width := 0
	for name, s := range w.alloc.TaskStates {
		if s == nil || task != "" && name != task {
			continue
		}
		width = max(width, min(len(name), maxNameColumn))
		for _, e := range slices.Concat(s.Events, w.refused[name]) {
			if e != nil {
				events = append(events, event{name, e})
			}
		}
	}
	if w.isParent() && w.Launches != nil {
		for _, e := range w.Launches() {
			events = append(events, event{"", e})
		}
	}
	slices.SortStableFunc(events, func(a, b event) int {
		return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.task, b.task))
	})
	clean := m.clean()
	lines := make([]string, 0, len(events))
	for _, e := range events {
		text := m.clock24(time.Unix(0, e.Time)) + "  "
		if task == "" {
			text += pad(clean.Text(e.task), width) + "  "
		}
		lines = append(lines, text+fmt.Sprintf("%-15s %s", clean.Text(e.Type), clean.Text(e.DisplayMessage)))
	}
	return lines
}

// maxNameColumn is how wide a column of names becomes at most.
const maxNameColumn = 20

// clock24 shows a time of today by its clock, others with the day.
func (m *Model) clock24(t time.Time) string {
	t = t.In(m.now.Location())
	if t.YearDay() == m.now.YearDay() && t.Year() == m.now.Year() {
		return t.Format("15:04:05")
	}
	return t.Format("Jan 02 15:04")
}

// checkLines returns the results of the checks of a task, or of all for an empty name, those that fail first.
func (m *Model) checkLines(w *watch, task string) []string {
	results := make([]api.AllocCheckStatus, 0, len(w.checks))
	owners := portOwners(w.alloc)
	for _, c := range w.checks {
		if task == "" || checkOwner(w.alloc, owners, c) == task {
			results = append(results, c)
		}
	}
	rank := func(c api.AllocCheckStatus) int { return strings.Index("failure pending success", c.Status) }
	slices.SortFunc(results, func(a, b api.AllocCheckStatus) int {
		names := cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Check, b.Check))
		return cmp.Or(rank(a)-rank(b), names, cmp.Compare(a.ID, b.ID))
	})
	clean := m.clean()
	lines := make([]string, 0, len(results))
	for _, c := range results {
		at := m.clock24(time.Unix(c.Timestamp, 0))
		line := fmt.Sprintf("%-8s %s  %s/%s", clean.Text(c.Status), at, clean.Text(c.Service), clean.Text(c.Check))
		if c.Task != "" && task == "" {
			line += "  task " + clean.Text(c.Task)
		}
		if c.StatusCode != 0 {
			line += fmt.Sprintf("  %d", c.StatusCode)
		}
		lines = append(lines, line+"  "+clean.Text(c.Output))
	}
	return lines
}

// detailLines returns what there is to say of a task.
func (m *Model) detailLines(w *watch, t task) []string {
	clean := m.clean()
	var lines []string
	fact := func(name, value string) {
		if value != "" {
			lines = append(lines, fmt.Sprintf("%-9s %s", name, value))
		}
	}
	state := clean.Text(t.state)
	if t.up > 0 {
		state += " for " + output.Duration(t.up)
	}
	fact("state", state)
	fact("CPU", pad(percent(t.cpu), 9)+m.cpuBars(w, t.name, 2*barsWidth))
	fact("memory", pad(bytesUsed(t.cpu, t.memory), 9)+m.memoryBars(w, t.name, 2*barsWidth))
	if megahertz, bytes := output.Granted(w.alloc, t.name); bytes > 0 {
		fact("granted", fmt.Sprintf("%d MHz, %s", megahertz, output.Bytes(uint64(bytes))))
	}
	fact("restarts", fmt.Sprint(t.restarts))
	fact("PID", t.pids)
	fact("ports", clean.Text(t.ports))
	if spec := specOf(w.alloc, t.name); spec != nil {
		fact("user", clean.Text(spec.User))
		if hook := spec.Lifecycle; hook != nil {
			text := hook.Hook
			if hook.Sidecar {
				text += ", sidecar"
			}
			fact("lifecycle", clean.Text(text))
		}
	}
	fact("command", clean.Text(t.command))
	if checks := m.checkLines(w, t.name); len(checks) > 0 {
		lines = append(append(lines, "", "CHECKS"), checks...)
	}
	if events := m.eventLines(w, t.name); len(events) > 0 {
		slices.Reverse(events) // the latest one is in sight
		lines = append(append(lines, "", "EVENTS, THE LATEST FIRST"), events...)
	}
	return lines
}
