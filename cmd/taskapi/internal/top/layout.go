package top

// layout says how many rows of the screen each part has.
type layout struct {
	title   int
	summary int
	heading int // of the table
	tasks   int
	bar     int // of the panel
	panel   int
	footer  int
}

// layoutOf shares the rows of a screen out. Where there are few, the parts go one by one: what is left is the title
// and, from two rows on, the last line, where questions are.
func layoutOf(rows, tasks int, zoomed bool) (l layout) {
	take := func(part *int, want, keep int) { // keep is how many rows must remain
		n := max(min(want, rows-keep), 0)
		*part += n
		rows -= n
	}
	take(&l.title, 1, 0)
	take(&l.footer, 1, 0)
	if zoomed {
		take(&l.bar, 1, 1)
		take(&l.panel, rows, 0)
		return l
	}
	take(&l.summary, 1, 6)
	take(&l.heading, 1, 1)
	take(&l.tasks, min(tasks, max(rows*2/5, minTasks)), 0)
	if rows >= minPanel {
		take(&l.bar, 1, 0)
		take(&l.panel, rows, 0)
	}
	take(&l.tasks, rows, 0)
	return l
}

// Where there are fewer rows, tasks come before a panel.
const (
	minTasks = 3
	minPanel = 3 // with its bar
)
