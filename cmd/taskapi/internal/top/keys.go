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
	do   func(*Model) tea.Cmd
}

// moves returns a binding's function that moves in the part of the screen that has the focus, by rows or pages.
func moves(by func(page int) int) func(*Model) tea.Cmd {
	return func(m *Model) tea.Cmd { return m.move(by) }
}

func rows(n int) func(int) int  { return func(int) int { return n } }
func pages(n int) func(int) int { return func(page int) int { return n * page } }

// far is more lines than there are.
const far = 1 << 30

// bindings are all keys, in the order of the help.
var bindings = []binding{
	{[]string{"up", "k"}, "up k", "up", moves(rows(-1))},
	{[]string{"down", "j"}, "down j", "down", moves(rows(1))},
	{[]string{"pgup", "ctrl+b", "ctrl+u"}, "PgUp ^B ^U", "a page up", moves(pages(-1))},
	{[]string{"pgdown", "ctrl+f", "ctrl+d", "space"}, "PgDn ^F ^D", "a page down", moves(pages(1))},
	{[]string{"home", "g"}, "Home g", "to the beginning", moves(rows(-far))},
	{[]string{"end", "G"}, "End G", "to the end, and follow", moves(rows(far))},
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
	{[]string{"r"}, "r", "restart the task", (*Model).askRestart},
	{[]string{"R"}, "R", "restart all that run", (*Model).askRestartAll},
	{[]string{"s"}, "s", "send a signal to the task", (*Model).askSignal},
	{[]string{"x"}, "x", "run a command in the task", (*Model).askCommand},
	{[]string{"S"}, "S", "stop the allocation", (*Model).askStop},
	{[]string{"esc", "alt+esc"}, "Esc", "back; ends a search", (*Model).back},
	{[]string{"ctrl+l"}, "^L", "draw the screen again", func(*Model) tea.Cmd { return tea.ClearScreen }},
	{[]string{"ctrl+z"}, "^Z", "to the shell; fg returns", func(*Model) tea.Cmd { return tea.Suspend }},
	{[]string{"?", "h", "f1"}, "? h", "this help", func(m *Model) tea.Cmd { m.help = true; return nil }},
	{[]string{"q", "ctrl+c", "f10"}, "q ^C", "leave; the tasks run on", func(*Model) tea.Cmd { return tea.Quit }},
}

// key does what a key is for.
func (m *Model) key(msg tea.KeyPressMsg) tea.Cmd {
	name := msg.String()
	if name == "ctrl+c" {
		return tea.Quit
	}
	if m.dialog != nil {
		return m.answer(msg)
	}
	m.notice = notice{}
	if m.help { // any key leaves it
		m.help = false
		return nil
	}
	for _, b := range bindings {
		if slices.Contains(b.keys, name) {
			return b.do(m)
		}
	}
	m.say(fmt.Sprintf("no key %s; ? shows all", name), true)
	return nil
}

// move moves in the part of the screen that has the focus.
func (m *Model) move(by func(page int) int) tea.Cmd {
	if m.focus == onPanel {
		p := m.shown()
		p.scroll(by(max(p.rows-1, 1)))
		return nil
	}
	return m.choose(min(max(m.cursor+by(max(m.layout().tasks-1, 1)), 0), len(m.tasks)-1))
}

// choose chooses a task.
func (m *Model) choose(row int) tea.Cmd {
	if row < 0 || row >= len(m.tasks) {
		return nil
	}
	m.cursor, m.chosen = row, m.tasks[row].name
	if m.only {
		m.tellEvents()
		m.tellChecks()
	}
	return m.follow()
}

func (m *Model) shown() *panel { return &m.panels[m.panel] }

func (m *Model) switchFocus() tea.Cmd {
	m.focus = onPanel - m.focus
	m.zoomed = m.zoomed && m.focus == onPanel
	return nil
}

func chooses(kind panelKind) func(*Model) tea.Cmd {
	return func(m *Model) tea.Cmd { m.panel = kind; return nil }
}

func (m *Model) switchStream() tea.Cmd {
	m.panel = outputPanel
	if m.stream == stdout {
		m.stream = stderr
	} else {
		m.stream = stdout
	}
	return m.follow()
}

func (m *Model) switchOnly() tea.Cmd {
	m.only = !m.only
	m.tellEvents()
	m.tellChecks()
	return nil
}

func (m *Model) switchFollow() tea.Cmd {
	m.shown().follow = !m.shown().follow
	return nil
}

func (m *Model) switchZoom() tea.Cmd {
	m.zoomed = !m.zoomed
	m.focus = onTasks
	if m.zoomed {
		m.focus = onPanel
	}
	return nil
}

// sideStep is how many columns a key moves long lines by.
const sideStep = 16

func sideways(by int) func(*Model) tea.Cmd {
	return func(m *Model) tea.Cmd {
		m.shown().column = min(max(m.shown().column+by, 0), maxLineBytes)
		return nil
	}
}

func matches(by int) func(*Model) tea.Cmd {
	return func(m *Model) tea.Cmd {
		p := m.shown()
		if p.text.query == "" {
			return m.askSearch()
		}
		switch found, around := p.next(by); {
		case !found:
			m.say("no match for "+p.text.query, true)
		case around:
			m.say("the search began again at the other end", false)
		}
		return nil
	}
}

func (m *Model) nextOrder() tea.Cmd {
	m.order = (m.order + 1) % orderCount
	m.sort()
	m.say("tasks by "+m.order.String(), false)
	return m.follow()
}

// back leaves what was entered last: the search, the whole screen, the panel.
func (m *Model) back() tea.Cmd {
	switch p := m.shown(); {
	case p.text.query != "":
		p.text.search("")
	case m.zoomed:
		return m.switchZoom()
	default:
		m.focus = onTasks
	}
	return nil
}

func (m *Model) askSearch() tea.Cmd {
	p := m.shown()
	m.dialog = &dialog{ask: "/", done: func(m *Model, query string) tea.Cmd {
		if query != "" && !p.search(query) {
			m.say("no match for "+query, true)
		}
		return nil
	}}
	return nil
}

func (m *Model) askTask() tea.Cmd {
	m.dialog = &dialog{ask: "Task: ", done: func(m *Model, name string) tea.Cmd {
		row := slices.IndexFunc(m.tasks, func(t task) bool { return t.name == name })
		if row < 0 {
			row = slices.IndexFunc(m.tasks, func(t task) bool { return strings.Contains(t.name, name) })
		}
		if row < 0 {
			m.say("no task is named like "+name, true)
		}
		return m.choose(row)
	}}
	return nil
}

// onRunning asks something about the chosen task, if a taskapi can be asked to do it.
func (m *Model) onRunning(ask func(task string) *dialog) tea.Cmd {
	switch {
	case m.presence == ended:
		m.say("the allocation has ended", true)
	case m.presence != running:
		m.say("no taskapi answers now", true)
	case m.chosen == "":
		m.say("there is no task", true)
	default:
		m.dialog = ask(m.chosen)
	}
	return nil
}

func (m *Model) askRestart() tea.Cmd {
	return m.onRunning(func(task string) *dialog {
		return &dialog{ask: "Restart task " + m.clean().text(task) + "?", yes: func(m *Model) tea.Cmd {
			return m.begin("restart task "+task, m.Controller.Restart, task)
		}}
	})
}

func (m *Model) askRestartAll() tea.Cmd {
	return m.onRunning(func(string) *dialog {
		return &dialog{ask: "Restart all tasks that run?", yes: func(m *Model) tea.Cmd {
			return m.begin("restart all tasks", m.Controller.Restart, "")
		}}
	})
}

func (m *Model) askStop() tea.Cmd {
	return m.onRunning(func(string) *dialog {
		tasks := "1 task"
		if n := len(m.tasks); n != 1 {
			tasks = fmt.Sprintf("%d tasks", n)
		}
		ask := fmt.Sprintf("Stop allocation %s with %s? It can't be started again.", output.ShortID(m.ID), tasks)
		return &dialog{ask: ask, yes: func(m *Model) tea.Cmd {
			m.say("stopping the allocation", false)
			return m.act("stop the allocation", m.Controller.Stop)
		}}
	})
}

func (m *Model) askSignal() tea.Cmd {
	return m.onRunning(func(task string) *dialog {
		ask := "Signal to task " + m.clean().text(task) + ": "
		return &dialog{ask: ask, text: "SIGHUP", done: func(m *Model, signal string) tea.Cmd {
			if signal == "" {
				return nil
			}
			signal = strings.ToUpper(signal)
			send := func(ctx context.Context, task string) error { return m.Controller.Signal(ctx, task, signal) }
			return m.begin(fmt.Sprintf("send %s to task %s", signal, task), send, task)
		}}
	})
}

func (m *Model) askCommand() tea.Cmd {
	return m.onRunning(func(task string) *dialog {
		ask := "Run in task " + m.clean().text(task) + ": "
		return &dialog{ask: ask, text: "/bin/sh", done: func(m *Model, line string) tea.Cmd {
			if line == "" {
				return nil
			}
			lent := &lentTerminal{cmd: m.Shell(m.work.context, task, line), line: line, lent: &m.lent}
			return tea.Exec(lent, func(err error) tea.Msg { return actionMsg{line, err} })
		}}
	})
}

// begin begins an action on a task, and says so.
func (m *Model) begin(what string, action func(ctx context.Context, task string) error, task string) tea.Cmd {
	m.say(what+" ...", false)
	return m.act(what, func(ctx context.Context) error { return action(ctx, task) })
}
