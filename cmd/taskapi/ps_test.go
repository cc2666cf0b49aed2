package main

import (
	"strings"
	"testing"
)

// TestPsInPlace: on a terminal, ps -f shows one table, which it draws again and again in the same place, below what was
// on the screen before.
func TestPsInPlace(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file := jobFile(t, topJob)
	p := startProcess(t, dir, file)
	until(t, p, "a task runs", func() bool { return strings.Contains(p.out.String(), " Started ") })
	term := newTerminal(t, 100, 24, "TASKAPI_DATA_DIR="+dir)
	term.runs("echo be''fore; taskapi ps -f; echo code $?")
	term.awaits("before", "Command")
	first := dateLine(term.screen())
	term.until("another time", func(screen string) bool {
		now := dateLine(screen)
		return now != "" && now != first
	})
	term.until("one table", func(screen string) bool { return strings.Count(screen, "Restarts") == 1 })
	term.awaits("before\n20")
	term.keys("C-c")
	term.awaits("code 0")
	term.restored()
}

// dateLine returns the line above the table.
func dateLine(screen string) string {
	before, _, there := strings.Cut(screen, "\nTask ")
	if !there {
		return ""
	}
	return before[strings.LastIndexByte(before, '\n')+1:]
}
