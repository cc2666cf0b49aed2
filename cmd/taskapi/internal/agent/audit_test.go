package agent

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"taskapi/internal/must"
)

// TestAuditShared: a change is once in each log; it is made without a line where no log is required, and not at all
// where one is.
func TestAuditShared(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe") // which nobody reads
	must.OK(t, syscall.Mkfifo(pipe, 0o600))
	failed := errors.New("no such key")
	first, second := Settings{AuditLog: filepath.Join(dir, "first")}, Settings{AuditLog: filepath.Join(dir, "second")}
	required := Settings{AuditLog: first.AuditLog, AuditRequired: true}
	for _, test := range []struct {
		name     string
		settings []Settings
		fails    error
		made     bool
		lines    string // each log's outcomes, with what was changed
		says     string
	}{
		{"no log", []Settings{{}}, nil, true, "", ""},
		{"two logs", []Settings{first, {}, second}, nil, true, "first done rotate: k|second done rotate: k", ""},
		{"one for two", []Settings{first, first}, nil, true, "first done rotate: k", ""},
		{"required", []Settings{required}, nil, true, "first begun rotate|first done rotate: k", ""},
		{"required by the second", []Settings{first, required}, nil, true, "first begun rotate|first done rotate: k", ""},
		{"that fails", []Settings{first}, failed, true, "first failed rotate: k", ""},
		{"not to be written", []Settings{{AuditLog: "/dev/full"}, first}, nil, true, "first done rotate: k", "no space left"},
		{"nobody reads", []Settings{{AuditLog: pipe}, first}, nil, true, "first done rotate: k", "nobody reads this pipe"},
		{"required and full", []Settings{first, {AuditLog: "/dev/full", AuditRequired: true}}, nil, false, "",
			"no space left"},
		{"required and unread", []Settings{{AuditLog: pipe, AuditRequired: true}}, nil, false, "", "nobody reads this pipe"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, s := range []Settings{first, second} {
				must.OK(t, os.RemoveAll(s.AuditLog))
			}
			var log bytes.Buffer
			made := false
			err := AuditShared(test.settings, func(text string) { log.WriteString(text) }, "rotate", func() (string, error) {
				made = true
				return ": k", test.fails
			})
			if made != test.made || made && !errors.Is(err, test.fails) || !made && err == nil {
				t.Errorf("made: %v, %v; want %v", made, err, test.made)
			}
			if err != nil {
				log.WriteString(err.Error())
			}
			if !strings.Contains(log.String(), test.says) || (test.says == "") != (log.Len() == 0 || made && err != nil) {
				t.Errorf("it says %q, want %q", log.String(), test.says)
			}
			var lines []string
			for _, s := range []Settings{first, second} {
				content, _ := os.ReadFile(s.AuditLog)
				for line := range strings.Lines(string(content)) {
					command, rest, _ := strings.Cut(line[strings.Index(line, `"command":"`)+len(`"command":"`):], `"`)
					outcome, _, _ := strings.Cut(strings.TrimPrefix(rest, `,"outcome":"`), `"`)
					lines = append(lines, filepath.Base(s.AuditLog)+" "+outcome+" "+command)
				}
			}
			if got := strings.Join(lines, "|"); got != test.lines {
				t.Errorf("the logs have %q, want %q", got, test.lines)
			}
		})
	}
}
