package agentlog_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"

	"taskapi/cmd/taskapi/internal/agentlog"
)

// newLog returns a log before a handler that prints lines of the level and above.
func newLog(level slog.Level) (*agentlog.Log, *slog.Logger, *bytes.Buffer) {
	var printed bytes.Buffer
	log := agentlog.New(slog.NewTextHandler(&printed, &slog.HandlerOptions{Level: level}))
	return log, slog.New(log), &printed
}

// unread returns what a reader has not read.
func unread(from <-chan []byte) []string {
	var lines []string
	for {
		select {
		case line := <-from:
			lines = append(lines, string(line))
		default:
			return lines
		}
	}
}

// TestFollow: readers get the lines of their level in Nomad's form, whatever the handler prints, and that is as it was.
func TestFollow(t *testing.T) {
	log, logger, printed := newLog(slog.LevelWarn)
	logger.Info("before")
	all, stopAll := log.Follow(agentlog.LevelTrace, false)
	defer stopAll()
	some, stopSome := log.Follow(slog.LevelWarn, false)
	defer stopSome()
	asJSON, stopJSON := log.Follow(slog.LevelInfo, true)
	defer stopJSON()
	logger.Debug("detail", "n", 1)
	logger.With("alloc", "a b").WithGroup("g").Warn("slow", "k", "v")
	logger.Error("two\nlines\x1b[2J", "v", "\x1b[2J")

	want := []string{
		`[DEBUG] agent: detail: n=1`, `[WARN]  agent: slow: alloc="a b" g.k=v`,
		`[ERROR] agent: "two\nlines\x1b[2J": v="\x1b[2J"`,
	}
	got := unread(all)
	for i, line := range got {
		if !regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}(Z|[+-]\d{4}) ` + regexp.QuoteMeta(want[i]) +
			"\n$").MatchString(line) {
			t.Errorf("line %d = %q, want %q", i, line, want[i])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d lines, want %d", len(got), len(want))
	}
	if got := unread(some); len(got) != 2 {
		t.Errorf("the reader of warnings got %q, want 2", got)
	}
	lines := unread(asJSON)
	if len(lines) != 2 {
		t.Fatalf("the reader of JSON got %q, want 2", lines)
	}
	var line map[string]any
	if err := json.Unmarshal([]byte(lines[0]), &line); err != nil || line["@level"] != "warn" ||
		line["@message"] != "slow" || line["alloc"] != "a b" ||
		line["@timestamp"] == nil {
		t.Errorf("JSON = %v, %v", line, err)
	}
	if text := printed.String(); strings.Contains(text, "detail") || strings.Count(text, "\n") != 2 {
		t.Errorf("printed %q, want the warning and the error alone", text)
	}
}

// TestWithoutReaders: nothing is formatted, and nothing wanted, when nobody reads any more.
func TestWithoutReaders(t *testing.T) {
	log, logger, _ := newLog(slog.LevelError)
	enabled := func() bool { return logger.Enabled(t.Context(), slog.LevelInfo) }
	if enabled() {
		t.Error("information is wanted, and nobody reads")
	}
	one, stopOne := log.Follow(slog.LevelInfo, false)
	two, stopTwo := log.Follow(slog.LevelWarn, false)
	if !enabled() {
		t.Error("information is not wanted, and somebody reads it")
	}
	stopOne()
	stopOne()
	if enabled() {
		t.Error("information is wanted by a reader of warnings")
	}
	logger.Warn("to the other")
	if got := unread(one); len(got) != 0 {
		t.Errorf("a closed reader got %q", got)
	}
	if got := unread(two); len(got) != 1 {
		t.Errorf("the other reader got %q", got)
	}
	stopTwo()
}

// TestSlowReader: logging goes on, and the reader learns how many lines it has lost.
func TestSlowReader(t *testing.T) {
	log, logger, _ := newLog(slog.LevelError)
	for _, asJSON := range []bool{false, true} {
		slow, stop := log.Follow(slog.LevelInfo, asJSON)
		for i := range agentlog.MaxUnread + 7 {
			logger.Info("line", "i", i)
		}
		if got := unread(slow); len(got) != agentlog.MaxUnread {
			t.Errorf("%d lines, want %d", len(got), agentlog.MaxUnread)
		}
		logger.Info("next")
		got := unread(slow)
		if len(got) != 2 || !strings.Contains(got[0], "7 lines were lost") || !strings.Contains(got[1], "next") {
			t.Errorf("then %q, want how many were lost, and the next", got)
		}
		stop()
	}
}

// TestManyReaders at once, who come and go.
func TestManyReaders(t *testing.T) {
	log, logger, _ := newLog(slog.LevelError)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 50 {
				r, stop := log.Follow(slog.LevelInfo, j%2 == 0)
				logger.With("i", i).Info(fmt.Sprint(j))
				if len(unread(r)) == 0 {
					t.Error("a reader missed its own line")
				}
				stop()
			}
		})
	}
	all.Wait()
}
