package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"taskapi/cmd/taskapi/internal/tmux"
	"taskapi/internal/must"
)

// terminal is a real one, of tmux, with a shell.
type terminal struct {
	t   *testing.T
	dir string // home of its shell
}

// newTerminal opens a terminal of a size, whose shell has taskapi as a command, and more of the environment as
// KEY=value.
func newTerminal(t *testing.T, width, height int, env ...string) *terminal {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("there is no tmux here: ", err)
	}
	dir := shortDir(t)
	must.OK(t, os.Symlink(self(t), filepath.Join(dir, "taskapi")))
	term := &terminal{t, dir}
	own := []string{"TASKAPI_TEST_MAIN=1", "HOME=" + dir, "PATH=" + dir + ":" + os.Getenv("PATH"), "NO_COLOR=",
		"LC_ALL=C.UTF-8",
		"GORACE=exitcode=0 atexit_sleep_ms=0 log_path=" + filepath.Join(dir, "race")}
	must.OK(t, term.session().Open(width, height, append(own, env...), "/bin/sh"))
	t.Cleanup(term.session().Close)
	term.tmux("set-option", "-g", "set-clipboard", "on")
	t.Cleanup(term.races)
	term.runs("PS1='rea''dy> '") // no shell takes it from the environment
	term.awaits("ready>")
	return term
}

// races fails the test for the data races that a program on the terminal has had. One is left out, of a library and at
// the end of its process: bubbletea gives its reader half a second to notice the end and then closes the file under it,
// which a busy machine lets one see.
func (term *terminal) races() {
	logs, err := filepath.Glob(filepath.Join(term.dir, "race.*"))
	if err != nil {
		term.t.Error(err)
	}
	for _, log := range logs {
		for report := range strings.SplitSeq(term.file(filepath.Base(log)), "WARNING: DATA RACE") {
			if strings.Contains(report, "goroutine") && !strings.Contains(report, "cancelreader.(*epollCancelReader).Close()") {
				term.t.Errorf("a data race%s", report)
			}
		}
	}
}

func (term *terminal) session() tmux.Terminal {
	return tmux.Terminal{Socket: filepath.Join(term.dir, "tmux")}
}

// file returns what a program has written into a file in the home of the shell.
func (term *terminal) file(name string) string {
	term.t.Helper()
	text := must.Read(term.t, filepath.Join(term.dir, name))
	return strings.TrimSpace(string(text))
}

// tmux runs a command of tmux and returns its output.
func (term *terminal) tmux(args ...string) string {
	term.t.Helper()
	return must.Get(term.session().Do(args...))(term.t)
}

// keys presses keys, by tmux's names.
func (term *terminal) keys(names ...string) {
	term.t.Helper()
	term.tmux(append([]string{"send-keys"}, names...)...)
}

// types types a text as it is.
func (term *terminal) types(text string) { term.t.Helper(); term.tmux("send-keys", "-l", text) }

// runs types a command line.
func (term *terminal) runs(line string) {
	term.t.Helper()
	term.types(line)
	term.keys("Enter")
}

// screen returns what is on the screen.
func (term *terminal) screen() string { term.t.Helper(); return term.tmux("capture-pane", "-p") }

// is asks tmux for something of the terminal, by its name of a format.
func (term *terminal) is(format string) string {
	term.t.Helper()
	return term.tmux("display-message", "-p", "#{"+format+"}")
}

// awaits waits until all texts are on the screen.
func (term *terminal) awaits(texts ...string) {
	term.t.Helper()
	term.until(fmt.Sprintf("%q on the screen", texts), func(screen string) bool {
		for _, text := range texts {
			if !strings.Contains(screen, text) {
				return false
			}
		}
		return true
	})
}

// until waits for something on the screen.
func (term *terminal) until(what string, ok func(screen string) bool) {
	term.t.Helper()
	for give := time.Now().Add(2 * deadline); ; {
		screen := term.screen()
		if ok(screen) {
			return
		}
		if time.Now().After(give) {
			term.t.Fatalf("never %s:\n%s", what, screen)
		}
		time.Sleep(20 * time.Millisecond) // a terminal can only be polled
	}
}

// restored fails the test unless the terminal is as a shell wants it.
func (term *terminal) restored() {
	term.t.Helper()
	for format, want := range map[string]string{
		"alternate_on": "0", "cursor_flag": "1", "mouse_any_flag": "0", "keypad_flag": "0", "keypad_cursor_flag": "0",
		"insert_flag": "0", "wrap_flag": "1",
	} {
		if got := term.is(format); got != want {
			term.t.Errorf("%s is %s after it, want %s", format, got, want)
		}
	}
	term.runs("clear; stty -a")
	term.awaits("speed", "ready>")
	screen := term.screen()
	for _, mode := range []string{" icanon", " echo ", " isig", " icrnl", " opost"} {
		if !strings.Contains(strings.ReplaceAll(screen, "\n", " ")+" ", mode) {
			term.t.Errorf("the terminal is left without%s:\n%s", mode, screen)
		}
	}
}
