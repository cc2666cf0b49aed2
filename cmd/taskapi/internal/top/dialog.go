package top

import (
	"unicode"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
)

// dialog is a line at the bottom of the screen that takes the keys until it is answered. It is a question before an
// action that can't be undone, which only y confirms, or a prompt for a line of text, which Enter sends and Esc
// cancels.
type dialog struct {
	ask       string
	confirm   bool              // it is a question, not a prompt
	text      string            // of a prompt: offered, or typed so far
	done      func(text string) // begins what the dialog is about
	typing    func(text string) // is called with each change of a prompt's text; nil for nothing
	cancelled func()            // is called when a prompt is left without an answer; nil for nothing

	typed bool // text is typed; before that, the first key replaces what was offered
}

// maxAnswer is how long a text may become, in bytes.
const maxAnswer = 512

// answer gives a key to the dialog.
func (m *Model) answer(msg tea.KeyPressMsg) {
	d, key := m.dialog, msg.String()
	m.dialog = nil
	switch {
	case d.confirm && (key == "y" || key == "Y"), key == "enter" && !d.confirm:
		d.done(d.text)
	case d.confirm:
		m.say("not done", false)
	case key == "esc", d.text == "" && (key == "backspace" || key == "ctrl+h"):
		if d.cancelled != nil {
			d.cancelled()
		}
	default:
		d.edit(key, msg.Text)
		d.changed()
		m.dialog = d
	}
}

func (d *dialog) changed() {
	if d.typing != nil {
		d.typing(d.text)
	}
}

// edit changes the text by a key that adds or deletes text.
func (d *dialog) edit(key, typed string) {
	switch key {
	case "backspace", "ctrl+h":
		_, size := utf8.DecodeLastRuneInString(d.text)
		d.text, d.typed = d.text[:len(d.text)-size], true
	case "ctrl+u", "ctrl+w":
		d.text, d.typed = "", true
	default:
		d.add(typed)
	}
}

// add adds the part of typed or pasted text that can be shown and fits.
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
