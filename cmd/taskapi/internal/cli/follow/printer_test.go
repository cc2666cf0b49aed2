package follow

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/pflag"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/internal/must"
)

// TestLostLinesAreCounted where they are missing, in the form of the others, for events and for the log.
func TestLostLinesAreCounted(t *testing.T) {
	const events = 2000
	held, group := make(chan struct{}), "g"
	var out, errs bytes.Buffer
	p := NewQueuedPrinter(heldWriter{held, &out}, &api.Allocation{TaskGroup: group,
		Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: &group}}}}, true)
	log := base.QueuedLog(base.Environment{Stderr: heldWriter{held, &errs}})
	logger := base.NewLogger(false, base.Environment{Stderr: log})
	for range events {
		p.AllocEvent("Event", "of which there are many")
		logger.Warn("one of many")
	}
	close(held)
	base.FlushAll(p.Queue, log)
	kinds, lost := map[string]int{}, 0 // in one gap or more, as the queue is emptied
	for text := range strings.Lines(out.String()) {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		kinds[l.Type]++
		if l.Type == "Lines Lost" {
			n, err := strconv.Atoi(l.Details["lines"])
			if err != nil {
				t.Error(err)
			}
			lost += n
		}
	}
	if kinds["Event"] == 0 || kinds["Event"] == events || kinds["Lines Lost"] == 0 || lost != events-kinds["Event"] {
		t.Errorf("%v, and %d said to be lost, of %d", kinds, lost, events)
	}
	n := strings.Count(errs.String(), "one of many")
	lost = 0
	for _, gap := range regexp.MustCompile(`level=WARN msg="lines of this log are missing: nobody has read them" `+
		`lines=(\d+)\n`).FindAllStringSubmatch(errs.String(), -1) {
		n, err := strconv.Atoi(gap[1])
		if err != nil {
			t.Error(err)
		}
		lost += n
	}
	if n == events || lost != events-n {
		t.Errorf("%d of %d lines, and then:\n%s", n, events, errs.String()[max(0, errs.Len()-300):])
	}
}

// heldWriter takes nothing until its channel is closed.
type heldWriter struct {
	held chan struct{}
	to   *bytes.Buffer
}

func (w heldWriter) Write(p []byte) (int, error) {
	<-w.held
	return w.to.Write(p)
}

// TestOutputFlag turns the tasks' output on and off; by default it is printed on a terminal, unless events are JSON.
func TestOutputFlag(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("there are no terminals here: ", err)
	}
	defer terminal.Close()
	for _, tc := range []struct {
		arg          string
		out          io.Writer
		json, wanted bool
	}{
		{"", terminal, false, true},
		{"", terminal, true, false},
		{"", io.Discard, false, false},
		{"--logs", io.Discard, true, true},
		{"--logs=false", terminal, false, false},
	} {
		var o OutputFlag
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.Add(f)
		must.OK(t, f.Parse(strings.Fields(tc.arg)))
		if got := o.Wanted(base.Environment{Stdout: tc.out}, tc.json); got != tc.wanted {
			t.Errorf("%q, JSON %t, to %T: wanted %t, want %t", tc.arg, tc.json, tc.out, got, tc.wanted)
		}
	}
}
