package top

import (
	"fmt"
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"taskapi/cmd/taskapi/internal/output"
	"taskapi/cmd/taskapi/internal/top/tasktext"
)

func ansiWidth(text string) int { return ansi.StringWidthWc(text) }

func ansiTruncate(text string, width int) string { return ansi.TruncateWc(text, max(width, 0), "~") }

// cut returns the columns of a text from one on. The library's CutWc returns the beginning of the text instead.
func cut(text string, from, width int) string {
	if from > 0 {
		text = ansi.TruncateLeftWc(text, from, "")
	}
	return ansi.TruncateWc(text, max(width, 0), "")
}

// View returns the screen as bubbletea draws it.
func (m *Model) View() tea.View {
	if !m.stale {
		return m.drawn
	}
	m.stale = false
	v := tea.NewView(m.screen())
	v.AltScreen = true
	if !m.noMouse {
		v.MouseMode = tea.MouseModeCellMotion
	}
	if m.dialog != nil && m.height > 1 {
		at := ansiWidth(m.question() + m.dialog.text)
		v.Cursor = tea.NewCursor(min(at, m.width-1), m.height-1)
		v.Cursor.Blink = false
	}
	m.drawn = v
	return v
}

// screen returns the rows of the screen: as many as it has, none wider than it is.
func (m *Model) screen() string {
	if m.width <= 0 || m.height <= 0 {
		return ""
	}
	m.zones = m.zones[:0]
	rows := append(make([]string, 0, m.height), m.titleRow())
	if between := m.height - 2; between > 0 {
		switch {
		case m.help:
			rows = append(rows, m.helpRows(between)...)
		case m.inside != nil:
			rows = append(rows, fill(m.inside.draw(1, between), between)...)
		default:
			rows = append(rows, fill(m.list.draw(1, between), between)...)
		}
	}
	if m.height > 1 {
		rows = append(rows, m.footerRow())
	}
	for i := range rows {
		rows[i] = ansi.TruncateWc(rows[i], m.width, "")
	}
	return strings.Join(rows, "\n")
}

// wideTitle is how wide a screen is that has room for more than a name in its title.
const wideTitle = 60

func (m *Model) titleRow() string {
	left, right, mark := m.list.title()
	if m.inside != nil {
		left, right, mark = m.inside.title()
	}
	clock := "  " + m.now.Format("15:04:05") + " "
	room := m.width - ansiWidth(right) - len(clock) - 2
	left = " " + pad(ansiTruncate(left, room), room) + " "
	if m.inside != nil && (m.inside.presence == away || strings.Contains(right, "UNHEALTHY")) {
		return m.paint(alarmStyle, left+right+clock)
	}
	return m.paint(headStyle, left) + m.paint(mark, right) + m.paint(faintStyle, clock)
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
		i := tasktext.Find(line, query)
		if i < 0 {
			break
		}
		out.WriteString(line[:i] + m.paint(mark, line[i:i+len(query)]))
		line = line[i+len(query):]
	}
	return out.String() + line
}

// paintFirst paints the first word of a line when it is a state.
func (m *Model) paintFirst(line string) string {
	word, _, _ := strings.Cut(line, " ")
	if color := output.StatusColor(word); color == output.Plain {
		return line
	}
	_, mark := stateMark(word)
	return m.paint(mark, word) + line[len(word):]
}

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
		if over := ansiWidth(ask+answer) + 1 - m.width; over > 0 { // its end is what is typed
			answer = ansi.TruncateLeftWc(answer, min(over, ansiWidth(answer)), "")
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
	all := []string{"? help", "q quit", "Enter open", "/ filter", "p order", "S stop", "R restart all", "m mouse"}
	filter := m.list.filter
	if s := m.inside; s != nil {
		all = []string{"? help", "q quit", "Esc back", "/ filter", "Tab focus", "Enter zoom", "r restart", "s signal",
			"x run", "t stop task", "S stop", "e stdout, stderr", "m mouse"}
		filter = s.filter
		if s.focus == onPanel {
			all[3] = "/ search"
		}
	}
	row := ""
	if filter != "" {
		row = m.paint(warnStyle, "  filter: "+m.clean().Text(filter))
	}
	width := ansiWidth(row)
	for _, hint := range all {
		if width += len(hint) + 2; width > m.width {
			break
		}
		key, does, _ := strings.Cut(hint, " ")
		row += "  " + key + m.paint(faintStyle, " "+does)
	}
	return strings.TrimPrefix(row, " ")
}

// helpRows lists the keys, in two columns where they fit.
func (m *Model) helpRows(rows int) []string {
	lines := make([]string, 0, len(bindings()))
	for _, b := range bindings() {
		if m.inside != nil && b.inside == nil || m.inside == nil && b.list == nil {
			continue
		}
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
