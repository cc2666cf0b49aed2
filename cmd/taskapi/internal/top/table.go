package top

import (
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// column is a column of a table. The first one names the row. The last one takes the room that remains.
type column[R any] struct {
	head  string
	least int  // how wide it is at least; what changes often keeps its width
	right bool // its cells stand at the right
	rank  int  // those with the highest ranks go first where there is no room
	cell  func(R) cell
}

// cell is a part of a row. Its text is safe for the terminal.
type cell struct {
	text string
	mark style
}

func plainCell(text string) cell { return cell{text: text} }

const (
	columnGap = 2
	minName   = 12 // of the first column
	minRest   = 16 // of the last one, unless all of it fits
)

// grown are the widths that a table's columns have had. They grow with what is shown and shrink with a new size of the
// screen alone, so that a table keeps still.
type grown struct {
	width int // of the screen
	of    []int
}

// tableOf returns the heading and the rows of a table, width wide. chosen is the index of the chosen row, negative for
// none; all of it is in the style mark.
func tableOf[R any](m *Model, columns []column[R], rows []R, width, chosen int, mark style, g *grown) (heading string,
	lines []string) {
	cells := make([][]cell, len(rows))
	if g.width != width || len(g.of) != len(columns) {
		*g = grown{width, make([]int, len(columns))}
	}
	for i, c := range columns {
		g.of[i] = max(g.of[i], c.least, len(c.head))
	}
	for i, r := range rows {
		cells[i] = make([]cell, len(columns))
		for j, c := range columns {
			cells[i][j] = c.cell(r)
			g.of[j] = max(g.of[j], ansi.StringWidthWc(cells[i][j].text))
		}
	}
	widths := share(columns, g.of, width-1)
	line := func(painted bool, text func(int) cell) string {
		var out strings.Builder
		gap := 0
		for j, wide := range widths {
			if wide == 0 {
				continue
			}
			c := text(j)
			shown := aligned(c.text, wide, columns[j].right)
			if painted {
				shown = m.paint(c.mark, shown)
			}
			out.WriteString(strings.Repeat(" ", gap) + shown)
			gap = columnGap
		}
		return out.String()
	}
	lines = make([]string, len(rows))
	for i := range rows {
		row := func(j int) cell { return cells[i][j] }
		if i == chosen {
			lines[i] = m.paint(mark, pad(">"+line(false, row), width))
		} else {
			lines[i] = " " + line(true, row)
		}
	}
	return m.paint(headStyle, " "+line(false, func(j int) cell { return plainCell(columns[j].head) })), lines
}

// share returns how wide the columns are, 0 for those without room. The name is cut before another column goes, but
// not below minName.
func share[R any](columns []column[R], want []int, width int) []int {
	widths := make([]int, len(columns))
	name, last := min(want[0], max(minName, width/3)), len(columns)-1
	left := width - name
	order := make([]int, 0, last)
	for i := 1; i < last; i++ {
		order = append(order, i)
	}
	slices.SortStableFunc(order, func(a, b int) int { return columns[a].rank - columns[b].rank })
	for _, i := range order {
		if left < want[i]+columnGap {
			continue
		}
		widths[i] = want[i]
		left -= want[i] + columnGap
	}
	more := max(min(want[0]-name, left), 0)
	widths[0] = min(name+more, width)
	if left -= more + columnGap; left >= minRest || left >= want[last] {
		widths[last] = left
	}
	return widths
}

// aligned brings a text to a width.
func aligned(text string, wide int, right bool) string {
	text = ansi.TruncateWc(text, wide, "~")
	if right {
		return strings.Repeat(" ", max(wide-ansi.StringWidthWc(text), 0)) + text
	}
	return pad(text, wide)
}

func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(width-ansi.StringWidthWc(text), 0))
}

func fill(rows []string, n int) []string { return append(rows, make([]string, max(n-len(rows), 0))...) }

// selection is the chosen row of a table. It stays the same by its key when rows are sorted, come and go; when it goes
// itself, a neighbour is chosen.
type selection struct {
	keys   []string
	cursor int // index of the chosen row
	top    int // index of the first row shown
	chosen string
}

// set takes over the rows that there are now.
func (s *selection) set(keys []string) {
	s.keys = keys
	if i := slices.Index(keys, s.chosen); i >= 0 {
		s.cursor = i
	}
	s.choose(s.cursor)
}

// choose chooses a row, or the nearest one that there is.
func (s *selection) choose(row int) {
	if len(s.keys) == 0 {
		s.cursor = 0
		return
	}
	s.cursor = min(max(row, 0), len(s.keys)-1)
	s.chosen = s.keys[s.cursor]
}

func (s *selection) has() bool { return s.cursor < len(s.keys) }

// window returns the rows that are shown in a number of lines. The chosen one always is.
func (s *selection) window(lines int) (from, to int) {
	if lines <= 0 || len(s.keys) == 0 {
		return 0, 0
	}
	s.top = min(s.top, s.cursor, max(len(s.keys)-lines, 0))
	s.top = max(s.top, s.cursor-lines+1, 0)
	return s.top, min(s.top+lines, len(s.keys))
}
