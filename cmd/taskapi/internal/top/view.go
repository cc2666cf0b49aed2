package top

import (
	"cmp"
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"taskapi/cmd/taskapi/internal/output"
)

// View returns the screen as bubbletea draws it.
func (m *Model) View() tea.View {
	v := tea.NewView(m.screen())
	v.AltScreen = true
	if m.dialog != nil && m.height > 1 {
		at := ansi.StringWidthWc(m.question() + m.dialog.text)
		v.Cursor = tea.NewCursor(min(at, m.width-1), m.height-1)
	}
	return v
}

func (m *Model) layout() layout { return layoutOf(m.height, len(m.tasks), m.zoomed) }

// screen returns the rows of the screen: as many as it has, none wider than it is.
func (m *Model) screen() string {
	if m.width <= 0 || m.height <= 0 {
		return ""
	}
	l := m.layout()
	m.shown().fit(l.panel)
	rows := make([]string, 0, m.height)
	add := func(n int, row func() string) {
		if n > 0 {
			rows = append(rows, row())
		}
	}
	add(l.title, m.titleRow)
	if m.help {
		rows = append(rows, m.helpRows(max(m.height-l.title-l.footer, 0))...)
	} else {
		add(l.summary, m.summaryRow)
		add(l.heading, m.headingRow)
		rows = append(rows, m.taskRows(l.tasks)...)
		add(l.bar, m.barRow)
		rows = append(rows, m.panelRows(l.panel)...)
	}
	add(l.footer, m.footerRow)
	for i := range rows {
		rows[i] = ansi.TruncateWc(rows[i], m.width, "")
	}
	return strings.Join(rows, "\n")
}

// titleRow says which allocation it is, and how it is.
func (m *Model) titleRow() string {
	left := " taskapi top "
	if m.alloc != nil {
		if m.width < wideTitle {
			left = ""
		}
		left += fmt.Sprintf(" %s/%s", m.clean().text(m.alloc.JobID), m.clean().text(m.alloc.TaskGroup))
	}
	left += "  " + output.ShortID(m.ID)
	right, mark := m.status()
	right += "  " + m.now.Format("15:04:05") + " "
	left = ansi.TruncateWc(left, max(m.width-len(right)-1, 0), "~")
	return m.paint(mark, pad(left, m.width-ansi.StringWidthWc(right))+right)
}

// wideTitle is how wide a screen is that has room for the program's name.
const wideTitle = 60

// status returns the allocation's status in a few words, and how they are shown.
func (m *Model) status() (words string, mark style) {
	since := output.Duration(m.now.Sub(m.since))
	switch m.presence {
	case connecting:
		return "connecting", barStyle
	case away:
		return "AWAY " + since, alarmStyle
	case ended:
		if m.alloc.ClientStatus == "failed" {
			return "ENDED failed", alarmStyle
		}
		return "ENDED " + m.clean().text(m.alloc.ClientStatus), barStyle
	}
	words, mark = m.clean().text(m.alloc.ClientStatus), barStyle
	if m.alloc.DesiredStatus == "stop" {
		words = "stopping"
	}
	if d := m.alloc.DeploymentStatus; d != nil && d.Healthy != nil {
		if words += " healthy"; !*d.Healthy {
			words, mark = strings.TrimSuffix(words, "healthy")+"UNHEALTHY", alarmStyle
		}
	}
	return words, mark
}

// summaryRow adds up what the tasks use.
func (m *Model) summaryRow() string {
	switch m.presence {
	case connecting:
		return m.paint(faintStyle, " "+m.clean().text(m.why))
	case away:
		return m.paint(badStyle, " No taskapi answers, trying again; the tasks may run on: "+m.clean().text(m.why))
	case ended:
		return m.paint(faintStyle, " The allocation has ended: this is the last that was seen of it.")
	}
	runs, passing := 0, 0
	for _, t := range m.tasks {
		if t.state == "running" {
			runs++
		}
	}
	for _, c := range m.checks {
		if c.Status == passingStatus {
			passing++
		}
	}
	cpu, memory := "-", "-"
	if m.usage != nil && m.usage.ResourceUsage != nil {
		share, bytes := usageOf(m.usage.ResourceUsage)
		cpu, memory = percent(share), output.Bytes(bytes)
	}
	text := fmt.Sprintf(" CPU %s  memory %s  tasks %d of %d running", cpu, memory, runs, len(m.tasks))
	if len(m.checks) > 0 {
		text += fmt.Sprintf("  checks %d of %d passing", passing, len(m.checks))
	}
	return text
}

// column is one of the table after the name.
type column struct {
	head string
	wide int // negative for text, which stands at the left
	cell func(t task) string
}

// columns are in the order in which they go when there is no room, the last one first.
var columns = []column{
	{"STATE", -10, func(t task) string { return t.state }},
	{"CPU", 6, func(t task) string { return percent(t.cpu) }},
	{"MEMORY", 10, func(t task) string {
		if t.cpu < 0 {
			return "-"
		}
		return output.Bytes(t.memory)
	}},
	{"RESTARTS", 8, func(t task) string { return fmt.Sprint(t.restarts) }},
	{"HEALTH", 7, func(t task) string {
		if t.checks == 0 {
			return "-"
		}
		return fmt.Sprintf("%d/%d", t.passing, t.checks)
	}},
	{"UPTIME", 7, func(t task) string {
		if t.up == 0 {
			return "-"
		}
		return output.Duration(t.up)
	}},
}

// minName is how many columns a task's name has at least, beside another column.
const minName = 12

// tableRow returns a name and the cells of the columns that fit beside it.
func (m *Model) tableRow(name string, cell func(column) string) string {
	shown, wide := 0, m.width-1
	for _, c := range columns {
		rest := wide - 1 - max(c.wide, -c.wide)
		if rest < minName {
			break
		}
		shown, wide = shown+1, rest
	}
	var row strings.Builder
	row.WriteString(pad(ansi.TruncateWc(name, wide, "~"), wide))
	for _, c := range columns[:shown] {
		row.WriteString(" " + aligned(cell(c), c.wide))
	}
	return row.String()
}

func (m *Model) headingRow() string {
	return m.paint(headStyle, " "+m.tableRow("TASK", func(c column) string { return c.head }))
}

// taskRows returns the rows of the tasks that are in sight. The chosen one always is.
func (m *Model) taskRows(rows int) []string {
	m.table = min(m.table, m.cursor, max(len(m.tasks)-rows, 0))
	m.table = max(m.table, m.cursor-rows+1, 0)
	out := make([]string, 0, rows)
	for i := m.table; i < min(m.table+rows, len(m.tasks)); i++ {
		t, mark := m.tasks[i], plainStyle
		row := " " + m.tableRow(m.clean().text(t.name), func(c column) string { return c.cell(t) })
		switch {
		case i == m.cursor:
			row, mark = pad(">"+row[1:], m.width), chosenStyle
		case t.bad, t.passing < t.checks:
			mark = badStyle
		case t.state != "running":
			mark = faintStyle
		}
		out = append(out, m.paint(mark, row))
	}
	return fill(out, rows)
}

// fill adds empty rows.
func fill(rows []string, n int) []string { return append(rows, make([]string, max(n-len(rows), 0))...) }

// barRow names the panels, and says where in the text of the panel the reader is.
func (m *Model) barRow() string {
	left := " "
	for kind := range panelCount {
		if kind == m.panel {
			left += fmt.Sprintf("[%d %s] ", kind+1, m.panelTitle())
		} else if m.width >= 60 {
			left += fmt.Sprintf(" %d %s  ", kind+1, kind)
		}
	}
	p := m.shown()
	right := p.position()
	if p.column > 0 {
		right = fmt.Sprintf("column %d  %s", p.column+1, right)
	}
	if p.note != "" && len(p.text.lines) > 0 {
		right = p.note
	}
	right = ansi.TruncateWc(right, max(m.width/2, 0), "~") + " "
	left = ansi.TruncateWc(left, max(m.width-ansi.StringWidthWc(right), 0), "~")
	mark := barStyle
	if m.focus == onPanel {
		mark = focusStyle
	}
	return m.paint(mark, pad(left, m.width-ansi.StringWidthWc(right))+right)
}

func (m *Model) panelTitle() string {
	switch {
	case m.panel == outputPanel && m.chosen != "":
		return "Output of " + m.clean().text(m.chosen) + " (" + m.stream + ")"
	case m.only && m.chosen != "":
		return m.panel.String() + " of " + m.clean().text(m.chosen)
	}
	return m.panel.String()
}

// panelRows returns the lines of the panel that are in sight, with the matches of a search.
func (m *Model) panelRows(rows int) []string {
	p := m.shown()
	out := make([]string, 0, rows)
	for n := p.top; n < min(p.top+rows, p.text.after()); n++ {
		line := ansi.CutWc(p.text.lines[n-p.text.first], p.column, p.column+m.width)
		out = append(out, m.highlight(line, p.text.query, n == p.match))
	}
	if len(p.text.lines) == 0 && rows > 0 {
		out = append(out, m.paint(faintStyle, " "+cmp.Or(p.note, "nothing yet")))
	}
	return fill(out, rows)
}

// highlight marks what was searched for in a line that is shown.
func (m *Model) highlight(line, query string, current bool) string {
	if query == "" {
		return line
	}
	mark := matchStyle
	if current {
		mark = currentStyle
	}
	var out strings.Builder
	for {
		i := matchIn(line, query)
		if i < 0 {
			break
		}
		out.WriteString(line[:i] + m.paint(mark, line[i:i+len(query)]))
		line = line[i+len(query):]
	}
	return out.String() + line
}

// question returns what the dialog asks.
func (m *Model) question() string {
	if m.dialog.confirm {
		return m.dialog.ask + " y/N "
	}
	return m.dialog.ask
}

// footerRow shows the question, else what there is to say, else the most useful keys.
func (m *Model) footerRow() string {
	switch {
	case m.dialog != nil:
		ask, answer := m.question(), m.dialog.text
		if over := ansi.StringWidthWc(ask+answer) + 1 - m.width; over > 0 { // its end is what is typed
			answer = ansi.TruncateLeftWc(answer, min(over, ansi.StringWidthWc(answer)), "")
		}
		return m.paint(headStyle, ask) + answer
	case m.notice.text != "" && m.now.Before(m.notice.until):
		mark := plainStyle
		if m.notice.bad {
			mark = badStyle
		}
		return m.paint(mark, " "+m.notice.text)
	case m.help:
		return " any key leaves the help"
	}
	return m.hints()
}

// hints names keys, as many as fit.
func (m *Model) hints() string {
	all := []string{
		"? help", "q quit", "/ search", "Enter zoom", "Tab focus", "e stderr", "r restart", "s signal", "x run", "S stop",
	}
	if m.stream == stderr {
		all[5] = "e stdout"
	}
	if m.zoomed {
		all[3] = "Esc back"
	}
	row := ""
	for _, hint := range all {
		if len(row)+len(hint)+2 > m.width {
			break
		}
		row += "  " + hint
	}
	return m.paint(faintStyle, strings.TrimPrefix(row, " "))
}

// helpRows lists the keys, in two columns where they fit.
func (m *Model) helpRows(rows int) []string {
	lines := make([]string, 0, len(bindings))
	for _, b := range bindings {
		lines = append(lines, fmt.Sprintf(" %-11s %s", b.show, b.does))
	}
	half := (len(lines) + 1) / 2
	if m.width >= 76 {
		for i := range half {
			if i+half < len(lines) {
				lines[i] = pad(lines[i], m.width/2) + lines[i+half]
			}
		}
		lines = lines[:half]
	}
	return fill(lines, rows)[:rows]
}

// aligned brings a text to a width: at the right, or at the left for a negative one.
func aligned(text string, wide int) string {
	if wide < 0 {
		return pad(ansi.TruncateWc(text, -wide, "~"), -wide)
	}
	return fmt.Sprintf("%*s", wide, text)
}

// pad fills a text up with spaces.
func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(width-ansi.StringWidthWc(text), 0))
}
