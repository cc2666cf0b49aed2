package top

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/internal/must"
	"taskapi/internal/privatefile"
)

// serve answers on an operator's socket, and returns the SDK for it.
func serve(t *testing.T, handler http.HandlerFunc) *SDK {
	t.Helper()
	temp := must.ShortDir(t)
	dir, id := datadir.Dir(temp), allocation().ID
	must.OK(t, os.MkdirAll(filepath.Dir(dir.OperatorSocket(id)), 0o700))
	must.OK(t, privatefile.Write(dir.OperatorToken(id), []byte("good\n")))
	l := must.Get(net.Listen("unix", dir.OperatorSocket(id)))(t)
	s := &http.Server{Handler: handler}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }() // until Close
	sdk := NewSDK(client.New(dir, id), id, nil)
	t.Cleanup(func() { s.Close(); <-done; sdk.Close() })
	return sdk
}

// logs are the output of one task: parts, which are followed by an end.
type logs struct {
	interfaces.Files
	parts  [][]byte
	opened int
	closed chan struct{}
}

func (l *logs) Logs(task, kind string, span interfaces.Span) (interfaces.Frames, error) {
	want := interfaces.Span{FromEnd: true, Offset: tailBytes, Follow: true, Await: true}
	if task != "server" || kind != "stdout" || span != want {
		return nil, fmt.Errorf("%s of %s from %+v", kind, task, span)
	}
	l.opened++
	return &logFrames{logs: l, end: l.opened > 1}, nil
}

// List is of a task whose standard output was written last, long before its standard error's files.
func (l *logs) List(path string, _ int) ([]*api.AllocFileInfo, error) {
	if path != "alloc/logs" {
		return nil, fmt.Errorf("the list of %s", path)
	}
	return []*api.AllocFileInfo{
		{Name: "server.stdout.0", Size: 5, ModTime: start}, {Name: "server.stdout.1", Size: 5, ModTime: start.Add(1)},
		{Name: "server.stdout.2", ModTime: start.Add(2)}, {Name: "server.stderr.0", Size: 1, ModTime: start.Add(3)},
	}, nil
}

type logFrames struct {
	*logs
	end bool // opened again: only the last part is there
}

func (l *logFrames) Next(ctx context.Context) (*api.StreamFrame, error) {
	if l.end && len(l.parts) > 1 {
		l.parts = l.parts[len(l.parts)-1:]
	}
	if len(l.parts) == 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	part := l.parts[0]
	l.parts = l.parts[1:]
	return &api.StreamFrame{Data: part}, nil
}

func (l *logFrames) Close() error {
	l.closed <- struct{}{}
	return nil
}

// TestOutputIsWhatIsThere in one part, then waits for more, and is closed with its context.
func TestOutputIsWhatIsThere(t *testing.T) {
	l := &logs{parts: [][]byte{[]byte("one "), []byte("two")}, closed: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	output := must.Get(NewSDK(nil, "", l).Output(ctx, "server", "stdout"))(t)
	if want := start.Add(1); !output.Written().Equal(want) {
		t.Errorf("it was written at %v, want %v", output.Written(), want)
	}
	if chunk, err := output.Next(); err != nil || string(chunk.Text) != "one two" || chunk.Gap {
		t.Errorf("got %q, something missing: %t, %v", chunk.Text, chunk.Gap, err)
	}
	cancel()
	if _, err := output.Next(); !errors.Is(err, context.Canceled) {
		t.Errorf("after its end: %v", err)
	}
	<-l.closed
}

// TestOutputKeepsUp: of more than can be shown, for long, the reader gets the latest, and hears that something is
// missing.
func TestOutputKeepsUp(t *testing.T) {
	l := &logs{closed: make(chan struct{}, 2)}
	for range 2 * maxBehind { // more than it reads
		l.parts = append(l.parts, make([]byte, chunkBytes))
	}
	l.parts = append(l.parts, []byte("the end"))
	ctx, cancel := context.WithCancel(t.Context())
	output := must.Get(NewSDK(nil, "", l).Output(ctx, "server", "stdout"))(t)
	for parts := range maxBehind {
		chunk, err := output.Next()
		if err != nil || len(chunk.Text) != chunkBytes || chunk.Gap {
			t.Fatalf("part %d has %d bytes, %v, something missing: %t", parts, len(chunk.Text), err, chunk.Gap)
		}
	}
	if chunk, err := output.Next(); err != nil || string(chunk.Text) != "the end" || !chunk.Gap {
		t.Errorf("%d bytes, %v, something missing: %t; want the end", len(chunk.Text), err, chunk.Gap)
	}
	cancel()
	<-l.closed // the one that was too slow
	<-l.closed
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
		for _, err := range []error{statsErr, checksErr, sdk.Restart(t.Context(), "server"),
			sdk.Signal(t.Context(), "server", "SIGHUP")} {
			if err == nil || errors.Is(err, ErrUnavailable) != tc.unavailable || !tc.unavailable && err.Error() != body {
				t.Errorf("%d %s: %v", tc.status, body, err)
			}
		}
	}
}
