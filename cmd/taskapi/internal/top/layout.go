package top

// layout says how many rows each part of the screen between its title and its last line has.
type layout struct {
	summary int
	heading int // of the table
	tasks   int // rows of the table
	bar     int // of the panel
	panel   int
}

// layoutOf shares the rows of a screen out between the table and a panel below it. Where there are few, the parts go
// one by one. most is how much of the rows the table gets before the panel, and keep how many rows of the panel are
// worth having: less of it is left out.
func layoutOf(rows, tasks int, most float64, keep int, zoomed bool) (l layout) {
	take := func(part *int, want, keep int) { // keep is how many rows must remain
		n := max(min(want, rows-keep), 0)
		*part += n
		rows -= n
	}
	if zoomed {
		take(&l.bar, 1, 1)
		take(&l.panel, rows, 0)
		return l
	}
	take(&l.summary, 1, 8)
	take(&l.heading, 1, 1)
	take(&l.tasks, min(tasks, max(int(float64(rows)*most), minTasks)), 0)
	if rows > keep {
		take(&l.bar, 1, 0)
		take(&l.panel, rows, 0)
	}
	take(&l.tasks, rows, 0)
	return l
}

// Where there are fewer rows, tasks come before a panel.
const (
	minTasks  = 3
	minPanel  = 2 // without its bar
	mostTasks = 0.4
	mostList  = 0.6
)

// listLayoutOf is layoutOf for the list, which gets all that the panel does not need.
func listLayoutOf(rows, allocs, panel int) layout {
	l := layoutOf(rows, allocs, mostList, minTasks, false)
	if panel == 0 {
		l.tasks += l.bar + l.panel
		l.bar, l.panel = 0, 0
	}
	return l
}

// A screen so wide shows the details of the chosen task beside another panel.
const (
	minSides  = 132
	leastSide = 52 // of the details
	mostSide  = 84
)

// sidesOf shares the width out between a panel and the details beside it; side is 0 where there is no room.
func sidesOf(width int) (panel, side int) {
	if width < minSides {
		return width, 0
	}
	side = min(max(width*2/5, leastSide), mostSide)
	return width - side, side
}

// zone is a part of the screen that the mouse acts on.
type zone struct {
	left, right, top, bottom int // the last two are after it
	click                    func(x, y int)
	wheel                    func(by int)
}
