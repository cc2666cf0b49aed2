package top

import (
	"unicode"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
)

// dialog is a line at the bottom of the screen that takes the keys until it is answered: a question before what
// can't be undone, to which only y says yes, or a prompt for a line of text, which Enter gives and Esc leaves.
type dialog struct {
	ask  string
	yes  func(*Model) tea.Cmd                // what a question is about; nil for a prompt
	text string                              // of a prompt: offered, or typed so far
	done func(m *Model, text string) tea.Cmd // what a prompt is about

	typed bool // text is typed; before that, the first key replaces what was offered
}

// maxAnswer is how long a text may become, in bytes.
const maxAnswer = 512

// answer gives a key to the dialog.
func (m *Model) answer(msg tea.KeyPressMsg) tea.Cmd {
	d, key := m.dialog, msg.String()
	switch {
	case d.yes != nil:
		m.dialog = nil
		if key == "y" || key == "Y" {
			return d.yes(m)
		}
		m.say("not done", false)
	case key == "enter":
		m.dialog = nil
		return d.done(m, d.text)
	case key == "esc":
		m.dialog = nil
	case key == "backspace", key == "ctrl+h":
		if d.text == "" {
			m.dialog = nil
		}
		_, size := utf8.DecodeLastRuneInString(d.text)
		d.text, d.typed = d.text[:len(d.text)-size], true
	case key == "ctrl+u", key == "ctrl+w":
		d.text, d.typed = "", true
	default:
		d.add(msg.Text)
	}
	return nil
}

// add adds typed or pasted text: what can be shown of it, and fits.
func (d *dialog) add(text string) {
	for _, r := range text {
		if !unicode.IsPrint(r) {
			continue
		}
		if !d.typed {
			d.text, d.typed = "", true
		}
		if len(d.text)+utf8.RuneLen(r) <= maxAnswer {
			d.text += string(r)
		}
	}
}

// paste gives text to a prompt. It is never taken for keys, nor for the answer to a question.
func (m *Model) paste(text string) {
	if m.dialog != nil && m.dialog.yes == nil {
		m.dialog.add(text)
	}
}
