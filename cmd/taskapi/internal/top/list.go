package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/cmd/taskapi/internal/top/tasktext"
	"taskapi/internal/ptr"
	"taskapi/internal/slice"
)

// list is the screen of all allocations.
type list struct {
	*Model
	selection
	rows   []row // in the order of the table
	order  int   // index of the table's order
	filter string
	seen   bool // each allocation has been read at least once: from then on the choice is kept
	grown  grown
	below  grown // of the table of the chosen one's tasks
}

type row struct {
	*watch
	figures
}

func (w *watch) key() string { return w.Dir + "/" + w.ID }

// listOrders are those that the table can have.
var listOrders = []struct {
	name    string
	compare func(a, b row) int
}{
	{"age, those that run first", func(a, b row) int { return output.CompareAllocs(a.alloc, b.alloc) }},
	{"CPU", func(a, b row) int { return cmp.Compare(b.cpu, a.cpu) }},
	{"memory", func(a, b row) int { return cmp.Compare(b.memory, a.memory) }},
	{"restarts", func(a, b row) int { return cmp.Compare(b.restarts, a.restarts) }},
	{"name", func(a, b row) int { return strings.Compare(a.name(), b.name()) }},
}

func (l *list) arrange() {
	l.rows = l.rows[:0]
	for _, w := range l.watches {
		if tasktext.Find(w.name()+" "+w.ID, l.filter) >= 0 {
			l.rows = append(l.rows, row{w, w.figures()})
		}
	}
	slices.SortStableFunc(l.rows, func(a, b row) int {
		return cmp.Or(listOrders[l.order].compare(a, b), strings.Compare(a.ID, b.ID))
	})
	l.set(slice.Map(l.rows, func(r row) string { return r.key() }))
	if !l.seen {
		l.choose(0)
		l.seen = l.looked && !slices.ContainsFunc(l.watches, func(w *watch) bool { return w.alloc == nil && w.why == "" })
	}
}

// current returns the chosen allocation, nil for none.
func (l *list) current() *watch {
	if !l.has() {
		return nil
	}
	return l.rows[l.cursor].watch
}

// A table shows the bars of a minute.
const (
	barsHead  = "LAST MINUTE"
	barsWidth = int(time.Minute / bucketTime)
)

// withoutBars leaves out the columns of bars if there is only one moment to show.
func withoutBars[R any](m *Model, columns []column[R]) []column[R] {
	return slices.DeleteFunc(columns, func(c column[R]) bool { return m.still && c.head == barsHead })
}

func (l *list) listColumns() []column[row] {
	clean := l.clean()
	columns := []column[row]{
		{head: "ALLOCATION", cell: func(r row) cell { return plainCell(clean.Text(r.name())) }},
		{head: "STATE", least: 10, rank: 1, cell: func(r row) cell {
			words, mark := r.state(l.now)
			return cell{clean.Text(strings.TrimPrefix(words, "running ")), mark}
		}},
		{head: "TASKS", right: true, rank: 2, cell: func(r row) cell {
			if r.alloc == nil {
				return plainCell("-")
			}
			if r.isParent() {
				return plainCell(fmt.Sprintf("parent %d", l.childrenOf(r.alloc)))
			}
			return plainCell(fmt.Sprintf("%d/%d", r.running, r.tasks))
		}},
		{head: "CPU", least: 6, right: true, rank: 3, cell: func(r row) cell { return plainCell(percent(r.cpu)) }},
		{head: barsHead, least: barsWidth, rank: 10, cell: func(r row) cell {
			return cell{l.cpuBars(r.watch, "", barsWidth), cpuStyle}
		}},
		{head: "MEMORY", least: 8, right: true, rank: 4, cell: func(r row) cell {
			return plainCell(bytesUsed(r.cpu, r.memory) + l.ofLimit(r.memory, r.limit))
		}},
		{head: barsHead, least: barsWidth, rank: 11, cell: func(r row) cell {
			return cell{l.memoryBars(r.watch, "", barsWidth), memoryStyle}
		}},
		{head: "RESTARTS", right: true, rank: 7, cell: func(r row) cell { return plainCell(fmt.Sprint(r.restarts)) }},
		{head: "CHECKS", right: true, rank: 6, cell: func(r row) cell { return checksCell(r.passing, r.checked) }},
		{head: "AGE", least: 6, right: true, rank: 5, cell: func(r row) cell {
			if r.alloc == nil {
				return plainCell("-")
			}
			return plainCell(age(l.now.Sub(time.Unix(0, r.alloc.CreateTime))))
		}},
		{head: "ID", rank: 8, cell: func(r row) cell { return cell{output.ShortID(r.ID), faintStyle} }},
		{head: "PORTS", cell: func(r row) cell { return plainCell(clean.Text(r.ports("", nil))) }},
	}
	columns = withoutBars(l.Model, columns)
	if slices.ContainsFunc(l.watches, func(w *watch) bool { return w.Dir != "" }) {
		columns = slices.Insert(columns, len(columns)-1, column[row]{head: "DATA DIRECTORY", rank: 9,
			cell: func(r row) cell { return cell{clean.Text(r.Dir), faintStyle} }})
	}
	return columns
}

// isParent reports whether the allocation's job runs no task itself, but starts children.
func (w *watch) isParent() bool {
	return w.alloc != nil && w.alloc.Job != nil && interfaces.IsParent(w.alloc.Job)
}

// childrenOf counts the children of a job that have not ended.
func (l *list) childrenOf(parent *api.Allocation) (running int) {
	for _, w := range l.watches {
		if w.presence != ended && w.alloc != nil && w.alloc.Job != nil && w.alloc.Namespace == parent.Namespace &&
			ptr.Deref(w.alloc.Job.ParentID) == parent.JobID {
			running++
		}
	}
	return running
}

func checksCell(passing, checks int) cell {
	c := plainCell("-")
	if checks > 0 {
		c.text = fmt.Sprintf("%d/%d", passing, checks)
	}
	if passing < checks {
		c.mark = badStyle
	}
	return c
}

// bytesUsed shows the memory, if anything is known of it.
func bytesUsed(cpu float64, memory uint64) string {
	if cpu < 0 {
		return "-"
	}
	return output.Bytes(memory)
}

// wideLimit is the width of screen on which tables show how much of its limit a memory is.
const wideLimit = 100

// ofLimit is empty where no limit is enforced.
func (m *Model) ofLimit(memory uint64, limit int64) string {
	if limit <= 0 || m.width < wideLimit {
		return ""
	}
	return fmt.Sprintf(" %2.0f%%", float64(memory)/float64(limit)*100)
}

// cpuBars draws what a task of an allocation has used, or all of them for an empty name.
func (m *Model) cpuBars(w *watch, task string, width int) string {
	return w.past[task].cpuBars(m.now, width, m.bars())
}

func (m *Model) memoryBars(w *watch, task string, width int) string {
	return w.past[task].memoryBars(m.now, width, m.bars())
}

func (m *Model) bars() []rune {
	if m.Terminal.Lines {
		return bars
	}
	return asciiBars
}

// title says what is listed.
func (l *list) title() (left, right string, mark style) {
	left = "taskapi top"
	if l.width < wideTitle {
		left = "top"
	}
	runs := 0
	for _, w := range l.watches {
		if w.presence == running {
			runs++
		}
	}
	right = fmt.Sprintf("%d of %d run", runs, len(l.watches))
	if !l.looked {
		right = "looking"
	}
	return left, right, faintStyle
}

func (l *list) summary() string {
	if l.lookErr != nil {
		return l.paint(badStyle, " "+l.clean().Text(l.lookErr.Error()))
	}
	sum := figures{cpu: -1}
	for _, w := range l.watches {
		f := w.figures()
		sum.running += f.running
		sum.tasks += f.tasks
		sum.passing += f.passing
		sum.checked += f.checked
		if f.cpu >= 0 {
			sum.cpu = max(sum.cpu, 0) + f.cpu
			sum.memory += f.memory
		}
	}
	return l.summaryOf(sum, nil, "")
}

// summaryOf shows the CPU and the memory of all tasks together. For one allocation, bars of both and the ports follow.
// A part that does not fit is left out.
func (m *Model) summaryOf(f figures, of *watch, ports string) string {
	row, left := "", m.width
	add := func(label string, value cell, bars cell) {
		part := " " + m.paint(faintStyle, label) + " " + m.paint(value.mark, value.text)
		if bars.text != "" {
			part += " " + m.paint(bars.mark, bars.text)
		}
		if left -= ansiWidth(part); left >= 0 {
			row += part + " "
		}
		left--
	}
	cpu, memory := cell{mark: cpuStyle}, cell{mark: memoryStyle}
	if width := min((m.width-56)/2, 2*barsWidth); of != nil && !m.still && width > 0 {
		cpu.text, memory.text = m.cpuBars(of, "", width), m.memoryBars(of, "", width)
	}
	add("CPU", cell{fmt.Sprintf("%-6s", percent(f.cpu)), headStyle}, cpu)
	add("memory", cell{fmt.Sprintf("%-8s", bytesUsed(f.cpu, f.memory)), headStyle}, memory)
	add("tasks", cell{fmt.Sprintf("%d/%d", f.running, f.tasks), headStyle}, cell{})
	if f.checked > 0 {
		checks := checksCell(f.passing, f.checked)
		if f.passing == f.checked {
			checks.mark = headStyle
		}
		add("checks", checks, cell{})
	}
	if ports != "" {
		add("ports", plainCell(m.clean().Text(ports)), cell{})
	}
	return row
}

// draw returns the rows of the screen between its title and its last line.
func (l *list) draw(y, lines int) []string {
	layout := listLayoutOf(lines, len(l.rows), l.details())
	out := make([]string, 0, lines)
	if layout.summary > 0 {
		out = append(out, l.summary())
	}
	from, to := l.window(layout.tasks)
	heading, rows := tableOf(l.Model, l.listColumns(), l.rows[from:to], l.width, l.cursor-from, chosenStyle, &l.grown)
	if layout.heading > 0 {
		out = append(out, heading)
	}
	l.zones = append(l.zones, zone{0, l.width, y + len(out), y + len(out) + layout.tasks,
		func(_, line int) {
			if row := from + line; row == l.cursor {
				l.open()
			} else if row < len(l.rows) {
				l.choose(row)
			}
		}, func(by int) { l.choose(l.cursor + by) }})
	if len(l.rows) == 0 && layout.tasks > 0 {
		rows = []string{l.paint(faintStyle, " "+l.nothing())}
	}
	out = append(out, fill(rows, layout.tasks)...)
	if layout.bar > 0 {
		out = append(out, l.rule("Tasks of "+l.clean().Text(l.current().name()), "", false))
		out = append(out, fill(l.preview(layout.panel), layout.panel)...)
	}
	return out
}

func (l *list) nothing() string {
	switch {
	case !l.looked:
		return "looking for allocations"
	case l.filter != "":
		return "no allocation is named like " + l.clean().Text(l.filter) + "; Esc shows all"
	}
	return "no allocations; 'taskapi run' makes one"
}

// details returns how many rows there are to show of the chosen allocation.
func (l *list) details() int {
	if w := l.current(); w != nil && w.alloc != nil {
		return len(taskNames(w.alloc)) + 1
	}
	return 0
}

// preview returns the tasks of the chosen allocation and its latest events.
func (l *list) preview(lines int) []string {
	w := l.current()
	tasks := l.tasksOf(w)
	heading, rows := tableOf(l.Model, l.taskColumns(w), tasks[:min(max(lines-1, 0), len(tasks))], l.width, -1, plainStyle,
		&l.below)
	out := append([]string{heading}, rows...)
	events := l.eventLines(w, "")
	if room := lines - len(out) - 2; room > 0 && len(events) > 0 {
		out = append(out, "", l.paint(headStyle, " EVENTS"))
		for _, e := range events[max(len(events)-room, 0):] {
			out = append(out, " "+e)
		}
	}
	return out
}

func (l *list) open() {
	if w := l.current(); w != nil {
		l.enter(w)
	}
}
