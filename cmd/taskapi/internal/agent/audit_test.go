package agent

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"taskapi/auth"
	"taskapi/internal/must"
	"taskapi/internal/safedir"
	"taskapi/internal/same"
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
			same.As(t, test.lines, strings.Join(lines, "|"), "the logs have")
		})
	}
}

// TestPlantedAuditLog: another user who may write to the log's directory leads no line into another file, and gets
// none.
func TestPlantedAuditLog(t *testing.T) {
	for name, plant := range map[string]func(path, other string) error{
		"a link":              func(path, other string) error { return os.Symlink(other, path) },
		"a link to nothing":   func(path, other string) error { return os.Symlink(other+".new", path) },
		"a second name":       func(path, other string) error { return os.Link(other, path) },
		"another user's file": func(path, _ string) error { return fileOf(path, 65534) },
		"another user's link": func(path, other string) error {
			return errors.Join(os.Symlink(other, path), os.Lchown(path, 65534, 65534))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must.OK(t, os.Chmod(dir, 0o777))
			other := filepath.Join(t.TempDir(), "other")
			must.OK(t, fileOf(other, os.Geteuid()))
			s := Settings{AuditLog: filepath.Join(dir, "audit.log")}
			log := must.Get(OpenAudit(s, slog.New(slog.DiscardHandler)))(t) // a file of its own is good
			defer log.Close()
			must.OK(t, os.Rename(s.AuditLog, s.AuditLog+".1"))
			if err := plant(s.AuditLog, other); errors.Is(err, os.ErrPermission) {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
			if again, err := OpenAudit(s, slog.New(slog.DiscardHandler)); !errors.Is(err, safedir.ErrUnsafeFile) {
				again.Close()
				t.Errorf("the log is opened: %v", err)
			}
			if log.Reopen() == nil {
				t.Error("the log is opened again")
			}
			log.Audit(auth.NewCommandRecord("rotate"))
			if content := must.Get(os.ReadFile(s.AuditLog + ".1"))(t); !bytes.Contains(content, []byte("rotate")) {
				t.Errorf("the open file gets no more lines: %q", content)
			}
			if _, err := os.Stat(other + ".new"); !os.IsNotExist(err) {
				t.Errorf("a file was made: %v", err)
			}
		})
	}
}

// TestRequiredAuditLogThatIsRemoved: without a file at its path, no change is made. The open file is nobody's any more.
func TestRequiredAuditLogThatIsRemoved(t *testing.T) {
	s := Settings{AuditLog: filepath.Join(t.TempDir(), "audit.log"), AuditRequired: true}
	log := must.Get(OpenAudit(s, slog.New(slog.DiscardHandler)))(t)
	defer log.Close()
	must.OK(t, os.Remove(s.AuditLog))
	must.OK(t, os.Mkdir(s.AuditLog, 0o700))
	if err := log.Begin(auth.NewCommandRecord("rotate")); !errors.Is(err, auth.ErrAudit) {
		t.Errorf("a change while a directory is in the log's place: %v", err)
	}
	must.OK(t, os.Remove(s.AuditLog))
	must.OK(t, log.Begin(auth.NewCommandRecord("rotate")))
	if content := must.Get(os.ReadFile(s.AuditLog))(t); !bytes.Contains(content, []byte("rotate")) {
		t.Errorf("the new file has %q", content)
	}
}

func fileOf(path string, uid int) error {
	return errors.Join(os.WriteFile(path, nil, 0o600), os.Chown(path, uid, -1))
}
