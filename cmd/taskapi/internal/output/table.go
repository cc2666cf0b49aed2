package output

import (
	"io"
	"strings"
	"unicode/utf8"

	"taskapi/cmd/taskapi/internal/linewriter"
)

// Table is rows of cells in columns as wide as they need. The zero value is an empty one, without colours.
type Table struct {
	Colors Colors
	Indent int    // spaces before each row
	None   string // is shown instead of a header without rows
	rows   [][]cell
}

type cell struct {
	text  string
	color Color
}

// Row adds a row.
func (t *Table) Row(texts ...string) {
	row := make([]cell, len(texts))
	for i, text := range texts {
		row[i] = cell{text: linewriter.OneLine(text)}
	}
	t.rows = append(t.rows, row)
}

// Header adds a row of the columns' names.
func (t *Table) Header(names ...string) {
	t.Row(names...)
	for i := range names {
		t.Paint(i, Bold)
	}
}

// Paint gives a cell of the last row a colour. The first cell is 0.
func (t *Table) Paint(column int, c Color) { t.rows[len(t.rows)-1][column].color = c }

// String returns the table, each row ending with a line break and without spaces at its end.
func (t *Table) String() string {
	var widths []int
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	if len(t.rows) == 1 && t.None != "" {
		return t.None + "\n"
	}
	var b strings.Builder
	for _, row := range t.rows {
		last := len(row) - 1
		for last >= 0 && row[last].text == "" {
			last--
		}
		for i, c := range row[:last+1] {
			if i == 0 {
				b.WriteString(strings.Repeat(" ", t.Indent))
			}
			b.WriteString(t.Colors.Paint(c.color, c.text))
			if i < last {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text)+2))
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// WriteTo writes the table.
func (t *Table) WriteTo(out io.Writer) (int64, error) {
	n, err := io.WriteString(out, t.String())
	return int64(n), err
}

var _ io.WriterTo = (*Table)(nil)
