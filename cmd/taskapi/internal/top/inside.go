package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"taskapi/cmd/taskapi/internal/output"
	"taskapi/cmd/taskapi/internal/top/tasktext"
	"taskapi/internal/slice"
)

// inside is the screen of one allocation: its tasks, and panels about them.
type inside struct {
	*Model
	*watch
	selection
	rows   []task // in the order of the table
	order  int    // index of the table's order
	filter string
	grown  grown

	panels [panelCount]panel
	panel  panelKind
	focus  focus
	zoomed bool
	only   bool             // events and checks of the chosen task alone
	told   [panelCount]bool // their texts are up to date

	unusual bool // long lines are wrapped on a wide screen, and cut on a narrow one

	streams []tasktext.Stream // of the output
	opened  string            // the task and streams of the output shown
	end     context.CancelFunc
}

func newInside(m *Model, w *watch) *inside {
	s := &inside{Model: m, watch: w, streams: bothStreams, end: func() {}}
	for i := range s.panels {
		follow := panelKind(i) == outputPanel || panelKind(i) == eventsPanel
		s.panels[i] = panel{text: tasktext.Buffer{Clean: m.clean()}, follow: follow}
	}
	return s
}

var bothStreams = []tasktext.Stream{tasktext.Stdout, tasktext.Stderr}

func (s *inside) close() {
	s.end()
	s.choice++
}

// arrange makes the rows of the table, and what the panels say of the allocation.
func (s *inside) arrange() {
	all := s.tasksOf(s.watch)
	if s.chosen == "" && len(all) > 0 {
		s.chosen = firstChoice(all)
	}
	s.rows = slices.DeleteFunc(all, func(t task) bool { return tasktext.Find(t.name, s.filter) < 0 })
	slices.SortStableFunc(s.rows, orders[s.order].compare)
	s.set(slice.Map(s.rows, func(t task) string { return t.name }))
	s.tell()
}

// pass brings up to date what changes with the time alone.
func (s *inside) pass() {
	for i := range s.rows {
		s.rows[i].upTo(s.watch, s.now)
	}
	s.told[detailsPanel] = false
}

// firstChoice returns the task that is chosen first: a main task that runs, else a main task, else any.
func firstChoice(tasks []task) string {
	for _, like := range []func(task) bool{
		func(t task) bool { return t.main && t.state == "running" },
		func(t task) bool { return t.main },
	} {
		if i := slices.IndexFunc(tasks, like); i >= 0 {
			return tasks[i].name
		}
	}
	return tasks[0].name
}

// tell has the panels about the allocation written again when they are shown.
func (s *inside) tell() { s.told = [panelCount]bool{} }

// write writes the text of a panel about the allocation, if that may have changed.
func (s *inside) write(kind panelKind) {
	if s.alloc == nil || s.told[kind] {
		return
	}
	s.told[kind] = true
	only := ""
	if s.only {
		only = s.chosen
	}
	switch text := &s.panels[kind].text; kind {
	case eventsPanel:
		text.Replace(s.eventLines(s.watch, only))
	case checksPanel:
		text.Replace(s.checkLines(s.watch, only))
	case detailsPanel:
		if s.has() {
			text.Replace(s.detailLines(s.watch, s.rows[s.cursor]))
		}
	}
}

func (s *inside) pick(row int) {
	was := s.chosen
	s.choose(row)
	if s.chosen != was {
		s.panels[detailsPanel].top = 0
		s.tell()
	}
}

func (s *inside) output() *panel { return &s.panels[outputPanel] }

func (s *inside) shown() *panel { return &s.panels[s.panel] }

// follow opens the output of the chosen task, unless it is open already.
func (s *inside) follow() tea.Cmd {
	want := s.chosen + " " + s.streamsText()
	if s.chosen == "" || s.opened == want {
		return nil
	}
	pause := chosenPause
	if s.opened == "" {
		pause = 0
	}
	s.opened = want
	p := s.output()
	p.text.Reset()
	p.top, p.column, p.follow, p.note = 0, 0, true, "opening"
	return s.reopen(pause)
}

// reopen opens the output again, after a pause.
func (s *inside) reopen(pause time.Duration) tea.Cmd {
	s.end()
	s.choice++
	ctx, end := context.WithCancel(s.work.context)
	s.end = end
	return s.openOutput(ctx, s.watch, s.choice, s.chosen, s.streams, pause)
}

func (s *inside) streamsText() string {
	if len(s.streams) == 1 {
		return s.streams[0].String()
	}
	return "stdout and stderr"
}

// outputs takes over what was read of the output, if it is still that of the chosen task, and reads on.
func (s *inside) outputs(msg tea.Msg) tea.Cmd {
	switch msg := msg.(type) {
	case outputMsg:
		if msg.choice == s.choice {
			return s.read(msg)
		}
	case openedMsg:
		if msg[0].choice != s.choice {
			return nil
		}
		s.output().note = ""
		for _, o := range msg {
			if o.output == nil {
				s.output().note = s.clean().Text(o.err.Error())
				return s.reopen(awayPause)
			}
		}
		return tea.Batch(slice.Map(msg, s.read)...)
	}
	return nil
}

func (s *inside) read(o outputMsg) tea.Cmd {
	p := s.output()
	p.note = ""
	switch {
	case errors.Is(o.err, io.EOF):
		p.note = "removed"
		return nil
	case o.err != nil:
		p.note = s.clean().Text(o.err.Error())
		return s.readOutput(o, awayPause)
	case len(o.chunk.Text) == 0:
		return s.readOutput(o, 0)
	}
	if o.chunk.Gap {
		p.text.Note(o.stream, "[output is missing here: it came faster than it can be shown]")
	}
	p.text.Write(o.stream, o.chunk.Text)
	return s.readOutput(o, outputPause)
}

// title says which allocation it is, and how it is.
func (s *inside) title() (left, right string, mark style) {
	left = s.clean().Text(s.name())
	if s.alloc != nil && s.width >= wideTitle {
		left += "  " + output.ShortID(s.ID)
	}
	right, mark = s.state(s.now)
	return left, s.clean().Text(right), mark
}

func (s *inside) summary() string {
	switch {
	case s.gone:
		return s.paint(faintStyle, " The allocation has been removed: this is the last that was seen of it.")
	case s.presence == connecting:
		return s.paint(faintStyle, " "+s.clean().Text(s.why))
	case s.presence == away:
		return s.paint(badStyle, " No taskapi answers, trying again; the tasks may run on: "+s.clean().Text(s.why))
	case s.presence == ended:
		return s.paint(faintStyle, " The allocation has ended: this is the last that was seen of it.")
	}
	return s.summaryOf(s.figures(), s.watch, s.ports("", nil))
}

// draw returns the rows of the screen between its title and its last line.
func (s *inside) draw(y, lines int) []string {
	layout := layoutOf(lines, max(len(s.rows), 1), mostTasks, minPanel, s.zoomed)
	out := make([]string, 0, lines)
	if layout.summary > 0 {
		out = append(out, s.summary())
	}
	from, to := s.window(layout.tasks)
	mark := chosenStyle
	if s.focus == onPanel {
		mark = restingStyle
	}
	heading, rows := tableOf(s.Model, s.taskColumns(s.watch), s.rows[from:to], s.width, s.cursor-from, mark, &s.grown)
	if layout.heading > 0 {
		out = append(out, heading)
	}
	if layout.tasks > 0 {
		s.zones = append(s.zones, zone{0, s.width, y + len(out), y + len(out) + layout.tasks, func(_, line int) {
			s.focus = onTasks
			if from+line < len(s.rows) {
				s.pick(from + line)
			}
		}, func(by int) { s.pick(s.cursor + by) }})
		if len(s.rows) == 0 && s.filter != "" {
			rows = []string{s.paint(faintStyle, " no task is named like "+s.clean().Text(s.filter)+"; Esc shows all")}
		}
		out = append(out, fill(rows, layout.tasks)...)
	}
	if layout.bar > 0 {
		s.write(s.panel)
		s.shown().fit(layout.panel)
		out = append(out, s.bar(y+len(out)))
	}
	return append(out, s.drawPanels(y+len(out), layout.panel)...)
}

// bar names the panels, and says where in the text of the panel the reader is.
func (s *inside) bar(y int) string {
	left, at := "", 1
	for kind := range panelCount {
		name := fmt.Sprintf(" %d %s ", kind+1, s.panelTitle(kind))
		mark := faintStyle
		switch {
		case kind == s.panel && s.focus == onPanel:
			mark = focusStyle
		case kind == s.panel:
			mark = tabStyle
		case s.width < 60:
			continue
		}
		if wide := len(name); kind != s.panel {
			s.zones = append(s.zones, zone{at, at + wide, y, y + 1, func(int, int) { s.panel = kind }, nil})
		}
		at += len(name)
		left += s.paint(mark, name)
	}
	p := s.shown()
	right := p.position()
	if p.column > 0 {
		right = fmt.Sprintf("column %d  %s", p.column+1, right)
	}
	if p.note != "" && p.text.Len() > 0 {
		right = p.note
	}
	return s.rule(left, right, true)
}

// rule returns a line across the screen with texts at its left and its right. painted says that left has its own style.
func (m *Model) rule(left, right string, painted bool) string {
	stroke := "-"
	if m.Terminal.Lines {
		stroke = "─"
	}
	if right != "" {
		right = " " + right + " "
	}
	if !painted {
		left = m.paint(tabStyle, " "+left+" ")
	}
	right = ansiTruncate(right, m.width/2)
	left = ansiTruncate(left, m.width-2-ansiWidth(right))
	between := max(m.width-2-ansiWidth(left)-ansiWidth(right), 0)
	return m.paint(faintStyle, stroke) + left + m.paint(faintStyle, strings.Repeat(stroke, between)) + right +
		m.paint(faintStyle, stroke)
}

func (s *inside) panelTitle(kind panelKind) string {
	switch {
	case kind != s.panel || s.chosen == "":
	case kind == outputPanel && len(s.streams) == 1:
		return "Output of " + s.clean().Text(s.chosen) + " (" + s.streams[0].String() + ")"
	case kind == outputPanel || kind == detailsPanel || s.only:
		return kind.String() + " of " + s.clean().Text(s.chosen)
	}
	return kind.String()
}

// drawPanels returns the rows of the panel and, on a wide screen, of the details beside it.
func (s *inside) drawPanels(y, lines int) []string {
	if lines <= 0 {
		return nil
	}
	width, side := sidesOf(s.width)
	if s.panel == detailsPanel || s.zoomed {
		width, side = s.width, 0
	}
	left := s.drawPanel(s.panel, lines, width)
	s.zones = append(s.zones, zone{0, width, y, y + lines, func(int, int) { s.focus = onPanel }, s.shown().scroll})
	if side == 0 {
		return left
	}
	edge := "|"
	if s.Terminal.Lines {
		edge = "│"
	}
	details := &s.panels[detailsPanel]
	s.zones = append(s.zones, zone{width, s.width, y, y + lines, nil, details.scroll})
	right := s.drawPanel(detailsPanel, lines, side-2)
	for i := range left {
		left[i] = pad(ansiTruncate(left[i], width), width) + s.paint(faintStyle, edge) + " " + right[i]
	}
	return left
}

// drawPanel returns the lines of a panel that are in sight, with the matches of a search.
func (s *inside) drawPanel(kind panelKind, lines, width int) []string {
	s.write(kind)
	p := &s.panels[kind]
	p.fit(lines)
	p.wraps = kind == outputPanel && (s.width < narrow != s.unusual) && p.column == 0
	if p.text.Len() == 0 {
		return fill([]string{s.paint(faintStyle, " "+cmp.Or(p.note, "nothing yet"))}, lines)
	}
	out := make([]string, 0, lines)
	if p.wraps && p.follow {
		for n := p.text.After() - 1; n >= p.text.First() && len(out) < lines; n-- {
			out = append(s.drawLine(kind, n, width, lines), out...)
		}
		return fill(out[max(len(out)-lines, 0):], lines)
	}
	for n := p.top; n < p.text.After() && len(out) < lines; n++ {
		out = append(out, s.drawLine(kind, n, width, lines)...)
	}
	return fill(out[:min(len(out), lines)], lines)
}

// drawLine returns a line of a panel: one row, or several where long lines are wrapped, but at most half of the rows.
func (s *inside) drawLine(kind panelKind, n, width, lines int) []string {
	p := &s.panels[kind]
	l, gutter := p.text.Line(n), ""
	if kind == outputPanel && len(s.streams) > 1 {
		gutter = "  "
		if l.Stream == tasktext.Stderr {
			gutter = s.paint(badStyle, "!") + " "
		}
	}
	room, most := max(width-ansiWidth(gutter), 1), 1
	if p.wraps {
		most = max((lines+1)/2, 1)
	}
	var rows []string
	for from, wide := p.column, ansiWidth(l.Text); len(rows) < most && (from < wide || len(rows) == 0); from += room {
		text := cut(l.Text, from, room)
		if p.wraps && len(rows) == most-1 && from+room < wide {
			text = ansiTruncate(cut(l.Text, from, room+1), room)
		}
		text = s.highlight(text, p.text.Query(), n == p.match)
		switch {
		case kind == detailsPanel && l.Text == strings.ToUpper(l.Text):
			text = s.paint(headStyle, text)
		case kind == checksPanel || kind == detailsPanel:
			text = s.paintFirst(text)
		}
		rows = append(rows, gutter+text)
		gutter = strings.Repeat(" ", ansiWidth(gutter))
	}
	return rows
}

// narrow is how wide a screen is that wraps long lines, unless w says otherwise.
const narrow = 60
