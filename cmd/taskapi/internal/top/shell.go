package top

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"path"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	tea "charm.land/bubbletea/v2"
)

// commandEnd is how long a command has to end when the screen is ended.
const commandEnd = 3 * time.Second

// lentTerminal runs a command that has the terminal for its time. What it has written stays in sight until Enter is
// pressed, unless it was a shell and ended well.
type lentTerminal struct {
	cmd    *exec.Cmd
	line   string
	lent   *atomic.Bool
	stdin  io.Reader
	stdout io.Writer
}

var _ tea.ExecCommand = (*lentTerminal)(nil)

func (l *lentTerminal) SetStdin(r io.Reader)  { l.stdin, l.cmd.Stdin = r, r }
func (l *lentTerminal) SetStdout(w io.Writer) { l.stdout, l.cmd.Stdout = w, w }
func (l *lentTerminal) SetStderr(w io.Writer) { l.cmd.Stderr = w }

// Run runs the command to its end. Errors: those of exec.Cmd.Run.
func (l *lentTerminal) Run() error {
	l.lent.Store(true)
	defer l.lent.Store(false)
	l.cmd.Cancel = func() error { return l.cmd.Process.Signal(syscall.SIGTERM) } // it restores the terminal
	l.cmd.WaitDelay = commandEnd
	err := l.cmd.Run()
	if err == nil && isShell(l.line) {
		return nil
	}
	how := "ended"
	if err != nil {
		how = err.Error()
	}
	fmt.Fprintf(l.stdout, "\n[%s: Enter returns to taskapi top] ", how)
	// A terminal that has gone away is noticed by its next reader.
	_, _ = bufio.NewReaderSize(l.stdin, 16).ReadString('\n')
	return err
}

// shells are those that people work in.
var shells = []string{"sh", "ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "tcsh", "zsh"}

// isShell reports whether a command line is for a shell to work in: its name or its path, and nothing else.
func isShell(line string) bool { return slices.Contains(shells, path.Base(line)) }
