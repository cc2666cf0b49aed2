package top

import (
	"context"
	"fmt"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"

	"taskapi/cmd/taskapi/internal/output"
)

// binding is what keys do.
type binding struct {
	keys []string // as bubbletea names them
	show string   // as the help names them
	does string
	do   func(*Model)
}

// moves returns a binding's function that moves in the part of the screen that has the focus, by rows and pages.
func moves(rows, pages int) func(*Model) { return func(m *Model) { m.move(rows, pages) } }

// far is more lines than there are.
const far = 1 << 30

// bindings are all keys, in the order of the help.
var bindings = []binding{
	{[]string{"up", "k"}, "up k", "up", moves(-1, 0)},
	{[]string{"down", "j"}, "down j", "down", moves(1, 0)},
	{[]string{"pgup", "ctrl+b", "ctrl+u"}, "PgUp ^B ^U", "a page up", moves(0, -1)},
	{[]string{"pgdown", "ctrl+f", "ctrl+d", "space"}, "PgDn ^F ^D", "a page down", moves(0, 1)},
	{[]string{"home", "g"}, "Home g", "to the beginning", moves(-far, 0)},
	{[]string{"end", "G"}, "End G", "to the end, and follow", moves(far, 0)},
	{[]string{"left"}, "left", "what is left of long lines", sideways(-sideStep)},
	{[]string{"right"}, "right", "what is right of them", sideways(sideStep)},
	{[]string{"tab", "shift+tab"}, "Tab", "arrows in tasks, or panel", (*Model).switchFocus},
	{[]string{"1", "o"}, "1 o", "output of the chosen task", chooses(outputPanel)},
	{[]string{"2", "v"}, "2 v", "events", chooses(eventsPanel)},
	{[]string{"3", "c"}, "3 c", "check results", chooses(checksPanel)},
	{[]string{"e"}, "e", "stdout or stderr", (*Model).switchStream},
	{[]string{"a"}, "a", "events of all, or this task", (*Model).switchOnly},
	{[]string{"f"}, "f", "follow the end, or stay", (*Model).switchFollow},
	{[]string{"enter", "z"}, "Enter z", "panel on all of the screen", (*Model).switchZoom},
	{[]string{"/"}, "/", "search in the panel", (*Model).askSearch},
	{[]string{"n"}, "n", "next match, downwards", matches(1)},
	{[]string{"N"}, "N", "next match, upwards", matches(-1)},
	{[]string{"t"}, "t", "choose a task by name", (*Model).askTask},
	{[]string{"p"}, "p", "order of the tasks", (*Model).nextOrder},
	{[]string{"r"}, "r", "restart the task", restarts(false)},
	{[]string{"R"}, "R", "restart all that run", restarts(true)},
	{[]string{"s"}, "s", "send a signal to the task", (*Model).askSignal},
	{[]string{"x"}, "x", "run a command in the task", (*Model).askCommand},
	{[]string{"S"}, "S", "stop the allocation", (*Model).askStop},
	{[]string{"esc", "alt+esc"}, "Esc", "back; ends a search", (*Model).back},
	{[]string{"ctrl+l"}, "^L", "draw the screen again", begins(tea.ClearScreen)},
	{[]string{"ctrl+z"}, "^Z", "to the shell; fg returns", begins(tea.Suspend)},
	{[]string{"?", "h", "f1"}, "? h", "this help", func(m *Model) { m.help = true }},
	{[]string{"q", "ctrl+c", "f10"}, "q ^C", "leave; the tasks run on", begins(tea.Quit)},
}

// begins returns a binding's function that begins a command of bubbletea's.
func begins(cmd tea.Cmd) func(*Model) { return func(m *Model) { m.next = cmd } }

// key does what a key is for.
func (m *Model) key(msg tea.KeyPressMsg) {
	name := msg.String()
	i := slices.IndexFunc(bindings, func(b binding) bool { return slices.Contains(b.keys, name) })
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
	default:
		bindings[i].do(m)
	}
}

// move moves in the part of the screen that has the focus.
func (m *Model) move(rows, pages int) {
	if m.focus == onPanel {
		p := m.shown()
		p.scroll(rows + pages*max(p.rows-1, 1))
		return
	}
	by := rows + pages*max(m.layout().tasks-1, 1)
	m.choose(min(max(m.cursor+by, 0), len(m.tasks)-1))
}

// choose chooses a task.
func (m *Model) choose(row int) {
	if row < 0 || row >= len(m.tasks) {
		return
	}
	m.cursor, m.chosen = row, m.tasks[row].name
	if m.only {
		m.tellEvents()
		m.tellChecks()
	}
}

func (m *Model) shown() *panel { return &m.panels[m.panel] }

func (m *Model) switchFocus() {
	m.focus = onPanel - m.focus
	m.zoomed = m.zoomed && m.focus == onPanel
}

func chooses(kind panelKind) func(*Model) { return func(m *Model) { m.panel = kind } }

func (m *Model) switchStream() {
	m.panel = outputPanel
	if m.stream == stdout {
		m.stream = stderr
	} else {
		m.stream = stdout
	}
}

func (m *Model) switchOnly() {
	m.only = !m.only
	m.tellEvents()
	m.tellChecks()
}

func (m *Model) switchFollow() { m.shown().follow = !m.shown().follow }

func (m *Model) switchZoom() {
	m.zoomed = !m.zoomed
	m.focus = onTasks
	if m.zoomed {
		m.focus = onPanel
	}
}

// sideStep is how many columns a key moves long lines by.
const sideStep = 16

func sideways(by int) func(*Model) {
	return func(m *Model) { m.shown().column = min(max(m.shown().column+by, 0), maxLineBytes) }
}

func matches(by int) func(*Model) {
	return func(m *Model) {
		p := m.shown()
		if p.text.query == "" {
			m.askSearch()
			return
		}
		switch found, around := p.next(by); {
		case !found:
			m.say("no match for "+p.text.query, true)
		case around:
			m.say("the search began again at the other end", false)
		}
	}
}

func (m *Model) nextOrder() {
	m.order = (m.order + 1) % len(orders)
	m.sort()
	m.say("tasks by "+orders[m.order].name, false)
}

// back leaves what was entered last: the search, the whole screen, the panel.
func (m *Model) back() {
	switch p := m.shown(); {
	case p.text.query != "":
		p.text.search("")
	case m.zoomed:
		m.switchZoom()
	default:
		m.focus = onTasks
	}
}

func (m *Model) askSearch() {
	p := m.shown()
	m.dialog = &dialog{ask: "/", done: func(query string) {
		if query != "" && !p.search(query) {
			m.say("no match for "+query, true)
		}
	}}
}

func (m *Model) askTask() {
	m.dialog = &dialog{ask: "Task: ", done: func(name string) {
		row := slices.IndexFunc(m.tasks, func(t task) bool { return t.name == name })
		if row < 0 {
			row = slices.IndexFunc(m.tasks, func(t task) bool { return strings.Contains(t.name, name) })
		}
		if row < 0 {
			m.say("no task is named like "+name, true)
		}
		m.choose(row)
	}}
}

// askRunning asks something about the chosen task, if a taskapi can be asked to do it.
func (m *Model) askRunning(d dialog) {
	switch {
	case m.presence == ended:
		m.say("the allocation has ended", true)
	case m.presence != running:
		m.say("no taskapi answers now", true)
	case m.chosen == "":
		m.say("there is no task", true)
	default:
		m.dialog = &d
	}
}

func restarts(all bool) func(*Model) {
	return func(m *Model) {
		task := m.chosen
		ask, what := "Restart task "+m.clean().text(task)+"?", "restart task "+task
		if all {
			ask, what, task = "Restart all tasks that run?", "restart all tasks", ""
		}
		m.askRunning(dialog{ask: ask, confirm: true, done: func(string) {
			m.begin(what, func(ctx context.Context) error { return m.Source.Restart(ctx, task) })
		}})
	}
}

func (m *Model) askStop() {
	tasks := "1 task"
	if n := len(m.tasks); n != 1 {
		tasks = fmt.Sprintf("%d tasks", n)
	}
	ask := fmt.Sprintf("Stop allocation %s with %s? It can't be started again.", output.ShortID(m.ID), tasks)
	m.askRunning(dialog{ask: ask, confirm: true, done: func(string) {
		m.begin("stop the allocation", m.Source.Stop)
		m.say("stopping the allocation", false)
	}})
}

func (m *Model) askSignal() {
	task := m.chosen
	ask := "Signal to task " + m.clean().text(task) + ": "
	m.askRunning(dialog{ask: ask, text: "SIGHUP", done: func(signal string) {
		if signal = strings.ToUpper(signal); signal != "" {
			send := func(ctx context.Context) error { return m.Source.Signal(ctx, task, signal) }
			m.begin(fmt.Sprintf("send %s to task %s", signal, task), send)
		}
	}})
}

func (m *Model) askCommand() {
	task := m.chosen
	ask := "Run in task " + m.clean().text(task) + ": "
	m.askRunning(dialog{ask: ask, text: "/bin/sh", done: func(line string) {
		if line != "" {
			lent := &lentTerminal{cmd: m.Shell(m.work.context, task, line), line: line, lent: &m.lent}
			m.next = tea.Exec(lent, func(err error) tea.Msg { return actionMsg{line, err} })
		}
	}})
}
