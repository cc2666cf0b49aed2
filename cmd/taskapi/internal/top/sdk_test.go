package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/internal/privatefile"
)

// serve answers on an operator's socket, and returns the SDK for it.
func serve(t *testing.T, handler http.HandlerFunc) *SDK {
	t.Helper()
	temp, err := os.MkdirTemp("", "t") // a short path, for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(temp) })
	dir, id := datadir.Dir(temp), allocation().ID
	if err := os.MkdirAll(filepath.Dir(dir.OperatorSocket(id)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := privatefile.Write(dir.OperatorToken(id), []byte("good\n")); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", dir.OperatorSocket(id))
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: handler}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }() // until Close
	sdk := NewSDK(client.New(dir, id), id)
	t.Cleanup(func() { s.Close(); <-done; sdk.Close() })
	return sdk
}

// part is a part of an output as a frame: text that ends at an offset of a log file.
func part(file int, end int64, text string) *api.StreamFrame {
	return &api.StreamFrame{File: fmt.Sprintf("alloc/logs/server.stdout.%d", file), Offset: end, Data: []byte(text)}
}

// TestOutputGoesOn after the last byte, whatever of it the next connection begins with, and says when something is missing.
func TestOutputGoesOn(t *testing.T) {
	first := []*api.StreamFrame{part(0, 10, "0123456789"), {}, part(1, 5, "abcde")}
	for name, tc := range map[string]struct {
		next []*api.StreamFrame
		want string
		gap  bool
	}{
		"the same and more":      {[]*api.StreamFrame{part(0, 10, "56789"), part(1, 8, "abcdefgh")}, "0123456789abcdefgh", false},
		"in the middle":          {[]*api.StreamFrame{part(1, 4, "bcd"), part(1, 7, "efg")}, "0123456789abcdefg", false},
		"right after it":         {[]*api.StreamFrame{part(1, 7, "fg")}, "0123456789abcdefg", false},
		"the next file":          {[]*api.StreamFrame{part(1, 5, "e"), part(2, 2, "xy")}, "0123456789abcdexy", false},
		"the next file alone":    {[]*api.StreamFrame{part(2, 2, "xy")}, "0123456789abcdexy", false},
		"later in the same file": {[]*api.StreamFrame{part(1, 9, "hi")}, "0123456789abcdehi", true},
		"later in the next file": {[]*api.StreamFrame{part(2, 4, "zz")}, "0123456789abcdezz", true},
		"two files later":        {[]*api.StreamFrame{part(3, 2, "zz")}, "0123456789abcdezz", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var queries []string
			sdk := serve(t, func(w http.ResponseWriter, r *http.Request) {
				frames := first
				if queries = append(queries, r.URL.Query().Encode()); len(queries) > 1 {
					frames = tc.next
				}
				for _, frame := range frames {
					_ = json.NewEncoder(w).Encode(frame)
				}
				if w.(http.Flusher).Flush(); len(queries) > 1 {
					<-r.Context().Done()
				}
			})
			ctx, cancel := context.WithCancel(t.Context())
			output, err := sdk.Output(ctx, "server", stdout)
			if err != nil {
				t.Fatal(err)
			}
			text, gap := "", false
			for len(text) < len(tc.want) {
				chunk, err := output.Next()
				if err != nil {
					t.Fatal(err)
				}
				text, gap = text+string(chunk.Text), gap || chunk.Gap
			}
			if text != tc.want || gap != tc.gap {
				t.Errorf("got %q, something missing: %t; want %q, %t", text, gap, tc.want, tc.gap)
			}
			cancel()
			if _, err := output.Next(); !errors.Is(err, context.Canceled) {
				t.Errorf("after its end: %v", err)
			}
			if want := "follow=true&offset=65536&origin=end&task=server&type=stdout"; queries[0] != want {
				t.Errorf("asked for %s, want %s", queries[0], want)
			}
		})
	}
}

// TestOutputKeepsUp: of more than can be shown, for long, the reader gets the latest, and hears that something is missing.
func TestOutputKeepsUp(t *testing.T) {
	sdk := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(part(7, 1<<40, "the end"))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	line := strings.Repeat("x", 32<<10)
	frames := make(chan *api.StreamFrame, 2*maxBehind*chunkBytes/len(line))
	for i := range cap(frames) { // more than it reads
		frames <- part(0, int64(i+1)*int64(len(line)), line)
	}
	output := &sdkOutput{sdk: sdk, context: ctx, task: "server", stream: stdout, frames: frames, leave: func() {}}
	for parts := range maxBehind {
		chunk, err := output.Next()
		if err != nil || len(chunk.Text) != chunkBytes || chunk.Gap {
			t.Fatalf("part %d has %d bytes, %v, something missing: %t", parts, len(chunk.Text), err, chunk.Gap)
		}
	}
	chunk, err := output.Next()
	if err != nil || string(chunk.Text) != "the end" || !chunk.Gap {
		t.Errorf("%d bytes, %v, something missing: %t; want the end", len(chunk.Text), err, chunk.Gap)
	}
}

// TestUnavailable tells what a taskapi does not offer from what it can't do now.
func TestUnavailable(t *testing.T) {
	for body, tc := range map[string]struct {
		status      int
		unavailable bool
	}{
		"resource not found":              {http.StatusNotFound, true},
		"has no meaning here":             {http.StatusNotImplemented, true},
		`Task "server" has not started`:   {http.StatusNotFound, false},
		"Permission denied":               {http.StatusForbidden, false},
		"something about it went \x1b[2J": {http.StatusInternalServerError, false},
	} {
		sdk := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, body, tc.status) })
		_, statsErr := sdk.Stats(t.Context())
		_, checksErr := sdk.Checks(t.Context())
		_, outputErr := sdk.Output(t.Context(), "server", stdout)
		for _, err := range []error{statsErr, checksErr, outputErr, sdk.Restart(t.Context(), "server"), sdk.Signal(t.Context(), "server", "SIGHUP")} {
			if err == nil || errors.Is(err, ErrUnavailable) != tc.unavailable || !tc.unavailable && err.Error() != body {
				t.Errorf("%d %s: %v", tc.status, body, err)
			}
		}
	}
}
