package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/internal/must"
)

// TestDevOnATerminal: the command has a terminal of the same size, with job control and its own Ctrl-C, and the shell
// gets it back as it was.
func TestDevOnATerminal(t *testing.T) {
	t.Parallel()
	term := newTerminal(t, 91, 23)
	before := term.settings()
	term.runs(`taskapi dev -- bash --norc -i; echo "code=$?"`)
	term.runs(`test -t 0 -a -t 1 -a -t 2 && echo is-a-"terminal"; stty size; echo "task:$NOMAD_TASK_NAME"`)
	term.awaits("is-a-terminal", "23 91", "task:dev")
	mine := fmt.Sprint(1_000_000 + os.Getpid()) // other tests sleep, too
	term.runs("sleep " + mine)
	term.until("the command runs", func(string) bool { return strings.Contains(commandLines(t), "sleep\x00"+mine) })
	term.keys("C-c")
	term.runs(`echo "int:$?"`)
	term.awaits("int:130")
	term.runs("sleep " + mine + "1 | cat")
	term.until("the command runs", func(string) bool { return strings.Contains(commandLines(t), "sleep\x00"+mine+"1") })
	term.keys("C-z")
	term.awaits("Stopped")
	term.tmux("resize-window", "-x", "77", "-y", "19")
	term.until("another size", func(string) bool {
		term.runs("stty size")
		return strings.Contains(term.screen(), "19 77")
	})
	term.runs("exec sh -c 'exit 42'")
	term.awaits("code=42")
	term.tmux("resize-window", "-x", "91", "-y", "23")
	term.until("the size of before", func(string) bool { // tmux resizes its terminal a moment after the window
		term.runs(`echo "size:$(stty size)"`)
		return strings.Contains(term.screen(), "size:23 91")
	})
	if after := term.settings(); after != before {
		t.Errorf("the terminal is left with other settings:\n%s\nand was\n%s", after, before)
	}
	term.runs(`clear; echo typed | taskapi dev -- cat 2>~/err; echo "code=$?"`)
	term.awaits("typed", "code=0")
	term.runs(`clear; taskapi dev -- sh -c 'test -t 0 && ! test -t 1 && echo asked >&2; read x; echo "got $x"' | cat; ` +
		`echo done`)
	term.awaits("asked")
	term.runs("this")
	term.awaits("got this", "done")
	if after := term.settings(); after != before {
		t.Errorf("the terminal is left with other settings:\n%s\nand was\n%s", after, before)
	}
}

// settings returns the terminal's, as stty has them.
func (term *terminal) settings() string {
	term.t.Helper()
	term.runs("clear; stty -a > ~/settings; echo sa\"\"ved")
	term.awaits("saved")
	return term.file("settings")
}

// commandLines returns the command lines of all processes.
func commandLines(t *testing.T) string {
	t.Helper()
	files := must.Get(filepath.Glob("/proc/[0-9]*/cmdline"))(t)
	var all strings.Builder
	for _, file := range files {
		line, _ := os.ReadFile(file) // it may have ended
		all.Write(line)
		all.WriteByte('\n')
	}
	return all.String()
}
