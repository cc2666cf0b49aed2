// Package tmux has real terminals for tests and pictures: sessions of tmux, each with a server of its own.
package tmux

import (
	"fmt"
	"os/exec"
	"strings"
)

// Terminal is a session of tmux, which is found by its server's socket.
type Terminal struct{ Socket string }

// Open opens a terminal of a size with a command line for a shell. env is KEY=value.
func (t Terminal) Open(width, height int, env []string, command string) error {
	args := []string{"new-session", "-d", "-x", fmt.Sprint(width), "-y", fmt.Sprint(height)}
	for _, pair := range env {
		args = append(args, "-e", pair)
	}
	_, err := t.Do(append(args, command)...)
	return err
}

// Do runs a command of tmux and returns what it prints, without line breaks at the end.
func (t Terminal) Do(args ...string) (string, error) {
	server := []string{"-u", "-f", "/dev/null", "-S", t.Socket}
	out, err := exec.Command("tmux", append(server, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("tmux %q: %w\n%s", args, err, out)
	}
	return strings.TrimRight(string(out), "\n"), nil
}

// Close ends all that runs on the terminal.
func (t Terminal) Close() { _, _ = t.Do("kill-server") } // which may have ended with its last command
