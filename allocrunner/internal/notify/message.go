package notify

import (
	"strings"
	"unicode"
)

// maxStatus is how many letters of a status text are kept.
const maxStatus = 200

// message is what one datagram says. Assignments that mean nothing here, such as MAINPID and FDSTORE, are left out.
type message struct {
	ready, stopping, alive, trigger bool
	status                          *string
}

// parse reads the assignments of a datagram, a line each.
func parse(text string) message {
	var m message
	for line := range strings.SplitSeq(text, "\n") {
		switch key, value, _ := strings.Cut(line, "="); {
		case key == "STATUS":
			status := clean(value)
			m.status = &status
		case line == "READY=1":
			m.ready = true
		case line == "STOPPING=1":
			m.stopping = true
		case line == "WATCHDOG=1":
			m.alive = true
		case line == "WATCHDOG=trigger":
			m.trigger = true
		}
	}
	return m
}

// clean makes a text of a task fit for a terminal: letters that can't be shown become a replacement character.
func clean(text string) string {
	var b strings.Builder
	n := 0
	for _, r := range text { // invalid UTF-8 is U+FFFD
		if n++; n > maxStatus {
			break
		}
		if !unicode.IsPrint(r) {
			r = unicode.ReplacementChar
		}
		b.WriteRune(r)
	}
	return strings.TrimSpace(b.String())
}
