package top

import (
	"context"
	"fmt"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"

	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/cmd/taskapi/internal/top/tasktext"
)

// binding is what keys do.
type binding struct {
	keys   []string // as bubbletea names them
	show   string   // as the help names them
	does   string
	inside func(*inside) // nil where the keys do nothing
	list   func(*list)
}

// moves returns a binding that moves in the part of the screen that has the focus, by rows and pages.
func moves(keys []string, show, does string, rows, pages int) binding {
	return binding{keys, show, does, func(s *inside) { s.move(rows, pages) }, func(l *list) { l.move(rows, pages) }}
}

// both returns a binding that does the same on both screens.
func both(keys []string, show, does string, do func(*Model)) binding {
	return binding{keys, show, does, func(s *inside) { do(s.Model) }, func(l *list) { do(l.Model) }}
}

// far is more lines than there are.
const far = 1 << 30

// bindings returns all keys, in the order of the help. No other command pays for them at its start.
func bindings() []binding {
	return []binding{
		moves([]string{"up", "k"}, "up k", "up", -1, 0),
		moves([]string{"down", "j"}, "down j", "down", 1, 0),
		moves([]string{"pgup", "ctrl+b", "ctrl+u"}, "PgUp ^B ^U", "a page up", 0, -1),
		moves([]string{"pgdown", "ctrl+f", "ctrl+d", "space"}, "PgDn ^F ^D", "a page down", 0, 1),
		moves([]string{"home", "g"}, "Home g", "to the beginning", -far, 0),
		moves([]string{"end", "G"}, "End G", "to the end, and follow", far, 0),
		{[]string{"enter", "z"}, "Enter z", "open; or zoom the panel", (*inside).switchZoom, (*list).open},
		{[]string{"esc", "alt+esc"}, "Esc", "back; ends filter, search", (*inside).back,
			func(l *list) { l.filter = ""; l.arrange() }},
		{[]string{"/"}, "/", "filter; search in a panel", (*inside).askFilter,
			func(l *list) { l.dialog = filterDialog(&l.filter, l.arrange) }},
		{[]string{"n"}, "n", "next match, downwards", matches(1), nil},
		{[]string{"N"}, "N", "next match, upwards", matches(-1), nil},
		{[]string{"p"}, "p", "order of the rows", (*inside).nextOrder, (*list).nextOrder},
		{[]string{"left"}, "left", "what is left of long lines", sideways(-sideStep), nil},
		{[]string{"right"}, "right", "what is right of them", sideways(sideStep), nil},
		{[]string{"tab", "shift+tab"}, "Tab", "arrows in tasks, or panel", (*inside).switchFocus, nil},
		{[]string{"1", "o"}, "1 o", "output of the chosen task", chooses(outputPanel), nil},
		{[]string{"2", "v"}, "2 v", "events", chooses(eventsPanel), nil},
		{[]string{"3", "c"}, "3 c", "check results", chooses(checksPanel), nil},
		{[]string{"4", "d"}, "4 d", "details of the chosen task", chooses(detailsPanel), nil},
		{[]string{"e"}, "e", "stdout, stderr, or both", (*inside).switchStream, nil},
		{[]string{"a"}, "a", "events of all, or this task", (*inside).switchOnly, nil},
		{[]string{"f"}, "f", "follow the end, or stay",
			func(s *inside) { s.shown().follow = !s.shown().follow }, nil},
		{[]string{"w"}, "w", "wrap or cut long lines", func(s *inside) { s.unusual = !s.unusual }, nil},
		{[]string{"r"}, "r", "restart the task", restarts(false), nil},
		{[]string{"R"}, "R", "restart all that run", restarts(true),
			func(l *list) { l.ask(l.current(), (*Model).askRestartAll) }},
		{[]string{"t"}, "t", "stop the task, or start it", (*inside).askPause, nil},
		{[]string{"s"}, "s", "send a signal to the task", (*inside).askSignal, nil},
		{[]string{"x"}, "x", "run a command in the task", (*inside).askCommand, nil},
		{[]string{"S"}, "S", "stop the allocation", func(s *inside) { s.ask(s.watch, (*Model).askStop) },
			func(l *list) { l.ask(l.current(), (*Model).askStop) }},
		both([]string{"m"}, "m", "mouse on or off", (*Model).switchMouse),
		both([]string{"ctrl+l"}, "^L", "draw the screen again", begins(tea.ClearScreen)),
		both([]string{"ctrl+z"}, "^Z", "to the shell; fg returns", begins(tea.Suspend)),
		both([]string{"?", "h", "f1"}, "? h", "this help", func(m *Model) { m.help = true }),
		both([]string{"q", "ctrl+c", "f10"}, "q ^C", "leave; the tasks run on", begins(tea.Quit)),
	}
}

// begins returns a binding's function that begins a command of bubbletea's.
func begins(cmd tea.Cmd) func(*Model) { return func(m *Model) { m.next = cmd } }

func (m *Model) key(msg tea.KeyPressMsg) {
	name := msg.String()
	all := bindings()
	i := slices.IndexFunc(all, func(b binding) bool { return slices.Contains(b.keys, name) })
	switch {
	case name == "ctrl+c":
		m.next = tea.Quit
		return
	case m.dialog != nil:
		m.answer(msg)
		return
	}
	m.notice = notice{}
	switch {
	case m.help: // any key leaves it
		m.help = false
	case i < 0:
		m.say(fmt.Sprintf("no key %s; ? shows all", name), true)
	case m.inside != nil && all[i].inside != nil:
		all[i].inside(m.inside)
	case m.inside == nil && all[i].list != nil:
		all[i].list(&m.list)
	default:
		m.say(fmt.Sprintf("%s is a key inside of an allocation: Enter opens one", name), true)
	}
}

// click does what a click is for: it chooses what it is on.
func (m *Model) click(at tea.Mouse) {
	if m.dialog != nil {
		return
	}
	if m.help {
		m.help = false
		return
	}
	if z := m.zoneAt(at); z != nil && z.click != nil && at.Button == tea.MouseLeft {
		z.click(at.X-z.left, at.Y-z.top)
	}
}

// wheelStep is how many rows a turn of the wheel moves.
const wheelStep = 3

func (m *Model) wheel(at tea.Mouse) {
	z := m.zoneAt(at)
	if m.dialog != nil || m.help || z == nil || z.wheel == nil {
		return
	}
	switch at.Button {
	case tea.MouseWheelUp:
		z.wheel(-wheelStep)
	case tea.MouseWheelDown:
		z.wheel(wheelStep)
	}
}

func (m *Model) zoneAt(at tea.Mouse) *zone {
	i := slices.IndexFunc(m.zones, func(z zone) bool {
		return at.X >= z.left && at.X < z.right && at.Y >= z.top && at.Y < z.bottom
	})
	if i < 0 {
		return nil
	}
	return &m.zones[i]
}

func (m *Model) switchMouse() {
	if m.noMouse = !m.noMouse; m.noMouse {
		m.say("the mouse selects text in the terminal; m gives it back to top", false)
	} else {
		m.say("the mouse chooses and scrolls", false)
	}
}

func (l *list) move(rows, pages int) {
	l.choose(l.cursor + rows + pages*max(l.height-8, 1))
}

func (l *list) nextOrder() {
	l.order = (l.order + 1) % len(listOrders)
	l.arrange()
	l.say("allocations by "+listOrders[l.order].name, false)
}

// filterDialog asks for a filter, which holds while it is typed. Esc ends it.
func filterDialog(filter *string, apply func()) *dialog {
	set := func(text string) {
		*filter = text
		apply()
	}
	return &dialog{ask: "Filter: ", text: *filter, typed: true, done: set, typing: set, cancelled: func() { set("") }}
}

// move moves in the part of the screen that has the focus.
func (s *inside) move(rows, pages int) {
	if s.focus == onPanel {
		p := s.shown()
		p.scroll(rows + pages*max(p.rows-1, 1))
		return
	}
	s.pick(s.cursor + rows + pages*max(s.height/3, 1))
}

func (s *inside) switchFocus() {
	s.focus = onPanel - s.focus
	s.zoomed = s.zoomed && s.focus == onPanel
}

func chooses(kind panelKind) func(*inside) { return func(s *inside) { s.panel = kind } }

func (s *inside) switchStream() {
	s.panel = outputPanel
	switch {
	case len(s.streams) > 1:
		s.streams = bothStreams[:1]
	case s.streams[0] == tasktext.Stdout:
		s.streams = bothStreams[1:]
	default:
		s.streams = bothStreams
	}
}

func (s *inside) switchOnly() {
	s.only = !s.only
	s.tell()
}

func (s *inside) switchZoom() {
	s.zoomed = !s.zoomed
	s.focus = onTasks
	if s.zoomed {
		s.focus = onPanel
	}
}

// sideStep is how many columns a key moves long lines by.
const sideStep = 16

func sideways(by int) func(*inside) {
	return func(s *inside) { s.shown().column = min(max(s.shown().column+by, 0), tasktext.MaxLineBytes) }
}

func matches(by int) func(*inside) {
	return func(s *inside) {
		p := s.shown()
		if p.text.Query() == "" {
			s.askSearch()
			return
		}
		switch found, around := p.next(by); {
		case !found:
			s.say("no match for "+p.text.Query(), true)
		case around:
			s.say("the search began again at the other end", false)
		}
	}
}

func (s *inside) nextOrder() {
	s.order = (s.order + 1) % len(orders)
	s.arrange()
	s.say("tasks by "+orders[s.order].name, false)
}

// back leaves what was entered last: the search, the whole screen, the panel, the filter, the allocation.
func (s *inside) back() {
	switch p := s.shown(); {
	case p.text.Query() != "":
		p.text.Search("")
	case s.zoomed:
		s.switchZoom()
	case s.focus == onPanel:
		s.focus = onTasks
	case s.filter != "":
		s.filter = ""
		s.arrange()
	default:
		s.leave()
	}
}

// askFilter asks for a filter of the tasks or, in a panel, for a text to search.
func (s *inside) askFilter() {
	if s.focus == onPanel {
		s.askSearch()
		return
	}
	s.dialog = filterDialog(&s.filter, s.arrange)
}

func (s *inside) askSearch() {
	p := s.shown()
	s.dialog = &dialog{ask: "Search: ", done: func(query string) {
		if query != "" && !p.search(query) {
			s.say("no match for "+query, true)
		}
	}}
}

// ask asks something about an allocation, if a taskapi can be asked to do it.
func (m *Model) ask(w *watch, question func(*Model, *watch)) {
	switch {
	case w == nil:
		m.say("there is no allocation", true)
	case w.presence == ended:
		m.say("the allocation has ended", true)
	case w.presence != running:
		m.say("no taskapi answers now", true)
	default:
		question(m, w)
	}
}

// askTask is ask about the chosen task.
func (s *inside) askTask(question func(task string)) {
	s.ask(s.watch, func(*Model, *watch) {
		if s.has() {
			question(s.chosen)
		} else {
			s.say("there is no task", true)
		}
	})
}

// confirm asks before something is done.
func (m *Model) confirm(question, what string, do func(context.Context) error) {
	m.dialog = &dialog{ask: question, confirm: true, done: func(string) { m.begin(what, do) }}
}

func restarts(all bool) func(*inside) {
	return func(s *inside) {
		if all {
			s.ask(s.watch, (*Model).askRestartAll)
			return
		}
		s.askTask(func(task string) {
			s.confirm("Restart task "+s.clean().Text(task)+"?", "restart task "+task,
				func(ctx context.Context) error { return s.source.Restart(ctx, task) })
		})
	}
}

func (m *Model) askRestartAll(w *watch) {
	m.confirm("Restart all tasks of "+m.clean().Text(w.name())+" that run?", "restart all tasks",
		func(ctx context.Context) error { return w.source.Restart(ctx, "") })
}

func (m *Model) askStop(w *watch) {
	tasks := "1 task"
	if n := w.figures().tasks; n != 1 {
		tasks = fmt.Sprintf("%d tasks", n)
	}
	m.confirm(fmt.Sprintf("Stop %s (%s) with %s? It can't be started again.", m.clean().Text(w.name()),
		output.ShortID(w.ID), tasks), "stop "+w.name(), w.source.Stop)
}

// askPause asks to stop the chosen task, or to start it.
func (s *inside) askPause() {
	s.askTask(func(task string) {
		state, name := s.alloc.TaskStates[task], s.clean().Text(task)
		ask, what, to := "Stop task "+name+"? It stays stopped until it is started.", "stop task ", "pause"
		switch is := interfaces.ShownSchedule(state); {
		case state != nil && state.State == "dead":
			s.say("the task has ended", true)
			return
		case is == interfaces.ScheduleForcedPause:
			ask, what, to = "Start task "+name+"?", "start task ", "scheduled"
		case is == interfaces.SchedulePause:
			ask, what, to = "Run task "+name+" now, whatever its schedule says?", "run task ", "run"
		}
		s.confirm(ask, what+task, func(ctx context.Context) error { return s.source.Pause(ctx, task, to) })
	})
}

func (s *inside) askSignal() {
	s.askTask(func(task string) {
		ask := "Signal to task " + s.clean().Text(task) + ": "
		s.dialog = &dialog{ask: ask, text: "SIGHUP", done: func(signal string) {
			if signal = strings.ToUpper(signal); signal == "" {
				return
			}
			s.confirm(fmt.Sprintf("Send %s to task %s?", signal, s.clean().Text(task)),
				fmt.Sprintf("send %s to task %s", signal, task),
				func(ctx context.Context) error { return s.source.Signal(ctx, task, signal) })
		}}
	})
}

func (s *inside) askCommand() {
	s.askTask(func(task string) {
		s.dialog = &dialog{ask: "Run in task " + s.clean().Text(task) + ": ", text: "/bin/sh", done: func(line string) {
			if line != "" {
				lent := &lentTerminal{cmd: s.Shell(s.work.context, task, line), line: line, lent: &s.lent}
				s.next = tea.Exec(lent, func(err error) tea.Msg { return actionMsg{line, err} })
			}
		}}
	})
}
