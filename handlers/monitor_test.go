package handlers_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers"
	"taskapi/internal/must"
)

const monitorPath = "/v1/agent/monitor"

// fakeLog is a log of given lines, which remembers how it is followed.
type fakeLog struct {
	lines   chan []byte
	how     atomic.Value // "LEVEL JSON" of the latest
	readers atomic.Int64
}

func (l *fakeLog) Follow(level slog.Level, asJSON bool) (<-chan []byte, func()) {
	l.how.Store(fmt.Sprint(level, " ", asJSON))
	l.readers.Add(1)
	return l.lines, func() { l.readers.Add(-1) }
}

// TestSDKMonitor: frames of lines as they come, of the level that was asked for, until the client goes.
func TestSDKMonitor(t *testing.T) {
	for level, want := range map[string]string{"": "INFO false", "warn": "WARN false", "TRACE": "DEBUG-4 false"} {
		log := &fakeLog{lines: make(chan []byte)}
		s := newServer(t, newAlloc(t), func(c *handlers.Config) { c.Log = log })
		stop := make(chan struct{})
		frames, errs := s.sdk(t, operator).Agent().Monitor(stop,
			&api.QueryOptions{Params: map[string]string{"log_level": level, "node_id": anyNode}})
		for _, line := range []string{"one\n", "two\xff\n"} {
			select {
			case log.lines <- []byte(line):
			case err := <-errs:
				t.Fatal(err)
			}
			if frame := <-frames; string(frame.Data) != line {
				t.Errorf("frame = %q, want %q", frame.Data, line)
			}
		}
		if got := log.how.Load(); got != want {
			t.Errorf("log_level=%s follows %v, want %s", level, got, want)
		}
		close(stop)
		s.stop()
		if n := log.readers.Load(); n != 0 {
			t.Errorf("%d readers are left", n)
		}
	}
}

// TestMonitorPlain: the lines as they are.
func TestMonitorPlain(t *testing.T) {
	log := &fakeLog{lines: make(chan []byte)}
	s := newServer(t, newAlloc(t), func(c *handlers.Config) { c.Log = log })
	c := s.dial(t)
	text := head(http.MethodGet, monitorPath+"?plain=true&log_json=1&server_id=leader", operator, "")
	must.Get(io.WriteString(c.Conn, text))(t)
	response, err := http.ReadResponse(c.Reader, nil) // its body never ends, and to close it is to read it
	if err != nil || response.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Fatalf("answer = %+v, %v", response, err)
	}
	log.lines <- []byte("a line\n")
	if line, err := bufio.NewReader(response.Body).ReadString('\n'); err != nil || line != "a line\n" ||
		log.how.Load() != "INFO true" {
		t.Errorf("line = %q, %v, followed as %v", line, err, log.how.Load())
	}
}

// TestMonitorRefuses what it can't follow, and who may not.
func TestMonitorRefuses(t *testing.T) {
	s := newServer(t, newAlloc(t), everyRoute)
	for query, want := range map[string]reply{
		"log_level=loud": {Status: 400,
			Body: `Unknown log level: "loud"; there are trace, debug, info, warn and error`},
		"log_json=maybe":                      {Status: 400, Body: `log_json must be true or false, not "maybe"`},
		"plain=maybe":                         {Status: 400, Body: `plain must be true or false, not "maybe"`},
		"node_id=" + allocID:                  {Status: 404, Body: "node not found"},
		"server_id=other":                     {Status: 404, Body: `unknown Nomad server "other"`},
		"server_id=leader&node_id=" + anyNode: {Status: 400, Body: "Cannot target node and server simultaneously"},
	} {
		if got := s.do(t, http.MethodGet, monitorPath+"?"+query, operator, ""); got.Status != want.Status ||
			got.Body != want.Body {
			t.Errorf("%s = %d %q, want %d %q", query, got.Status, got.Body, want.Status, want.Body)
		}
	}
	if got := s.do(t, http.MethodGet, monitorPath, goodToken, ""); got.Status != 403 {
		t.Errorf("monitor by a task = %d, want 403", got.Status)
	}
	if got := newServer(t, newAlloc(t)).do(t, http.MethodGet, monitorPath, operator, ""); got.Status != 404 ||
		!strings.Contains(got.Body, "not found") {
		t.Errorf("monitor without a log = %+v, want 404", got)
	}
}
