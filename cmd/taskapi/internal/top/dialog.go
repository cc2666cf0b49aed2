package top

import (
	"unicode"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
)

// dialog is a line at the bottom of the screen that takes the keys until it is answered.
type dialog interface {
	// key takes a key. It returns what the answer does, and whether there is one.
	key(m *Model, msg tea.KeyPressMsg) (answer tea.Cmd, done bool)
	// line returns the question and the answer so far.
	line() (ask, answer string)
}

var (
	_ dialog = (*question)(nil)
	_ dialog = (*prompt)(nil)
)

// question stands before what can't be undone. Only y says yes.
type question struct {
	ask string
	yes func(*Model) tea.Cmd
}

func (q *question) key(m *Model, msg tea.KeyPressMsg) (tea.Cmd, bool) {
	if s := msg.String(); s == "y" || s == "Y" {
		return q.yes(m), true
	}
	m.say("not done", false)
	return nil, true
}

func (q *question) line() (ask, answer string) { return q.ask + " y/N ", "" }

// maxAnswer is how long an answer may become, in bytes.
const maxAnswer = 512

// prompt takes a line of text. Enter gives it, Esc gives nothing.
type prompt struct {
	ask   string
	text  string
	typed bool // a first key replaces the text that was offered
	done  func(m *Model, text string) tea.Cmd
}

func (p *prompt) key(m *Model, msg tea.KeyPressMsg) (tea.Cmd, bool) {
	switch s := msg.String(); s {
	case "enter":
		return p.done(m, p.text), true
	case "esc":
		return nil, true
	case "backspace", "ctrl+h":
		if p.text == "" {
			return nil, true
		}
		_, size := utf8.DecodeLastRuneInString(p.text)
		p.text = p.text[:len(p.text)-size]
		p.typed = true
	case "ctrl+u", "ctrl+w":
		p.text, p.typed = "", true
	default:
		p.add(msg.Text)
	}
	return nil, false
}

// add adds typed or pasted text: what can be shown of it, and fits.
func (p *prompt) add(text string) {
	for _, r := range text {
		if !unicode.IsPrint(r) {
			continue
		}
		if !p.typed {
			p.text, p.typed = "", true
		}
		if len(p.text)+utf8.RuneLen(r) <= maxAnswer {
			p.text += string(r)
		}
	}
}

func (p *prompt) line() (ask, answer string) { return p.ask, p.text }

// answer gives a key to the dialog.
func (m *Model) answer(msg tea.KeyPressMsg) tea.Cmd {
	asked := m.dialog
	answer, done := asked.key(m, msg)
	if done && m.dialog == asked {
		m.dialog = nil
	}
	return answer
}

// paste gives text to a prompt. It is never taken for keys, nor for the answer to a question.
func (m *Model) paste(text string) {
	if p, ok := m.dialog.(*prompt); ok {
		p.add(text)
	}
}
