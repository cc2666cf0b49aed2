package handlers_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/machine"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// busyMachine has one allocation, whose process sends events without end.
type busyMachine struct {
	machine.Machine
	self   route.Alloc
	sent   atomic.Int64
	closed chan struct{}
}

func (m *busyMachine) Self() route.Alloc                  { return m.self }
func (m *busyMachine) Index() uint64                      { return 1 }
func (m *busyMachine) Wait(ctx context.Context, _ uint64) { <-ctx.Done() }
func (m *busyMachine) Allocations(context.Context) ([]*api.Allocation, error) {
	return []*api.Allocation{m.self.Snapshot()}, nil
}

func (m *busyMachine) Ask(context.Context, string, *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: m}, nil
}

var busyLine = `{"Index":1,"Events":[{"Topic":"Job","Key":"` + strings.Repeat("x", 1000) + `"}]}` + "\n"

func (m *busyMachine) Read(p []byte) (int, error) {
	select {
	case <-m.closed:
		return 0, io.EOF
	default:
	}
	n := 0
	for n+len(busyLine) <= len(p) {
		n += copy(p[n:], busyLine)
	}
	if n == 0 {
		n = copy(p, "\n")
	}
	m.sent.Add(int64(n))
	return n, nil
}

func (m *busyMachine) Close() error {
	select {
	case <-m.closed:
	default:
		close(m.closed)
	}
	return nil
}

// TestMachinesSlowReader: for a client that does not read the events of a machine, no more of them are read than fit
// into a few buffers. A client that reads again gets them in order, and the last one's end ends everything.
func TestMachinesSlowReader(t *testing.T) {
	m := &busyMachine{self: newAlloc(t), closed: make(chan struct{})}
	config := handlers.Config{Server: handlers.Server{
		Authenticator: &streamAuthenticator{expires: lasting}, Allocs: allocs{}, Logger: slog.New(slog.DiscardHandler),
		PeerOf: func(net.Conn) (auth.Peer, error) { return peer, nil },
	}}
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	must.OK(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- handlers.NewMachine(config, m).Serve(ctx, listener, taskSocket) }()
	defer func() {
		cancel()
		must.OK(t, <-ended)
	}()
	conn, err := net.Dial("unix", path)
	must.OK(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /v1/event/stream HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: "+operator+"\r\n\r\n")
	must.OK(t, err)
	const most = 8 << 20
	last, same := int64(0), 0
	polltest.Until(func() bool {
		now := m.sent.Load()
		if same++; now != last || now == 0 {
			last, same = now, 0
		}
		return same == 20 || now > most
	})
	if last > most {
		t.Errorf("%d bytes were read for a client that reads none", last)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	must.OK(t, err)
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	var index uint64
	for read := int64(0); read < last+most && lines.Scan(); read += int64(len(lines.Bytes())) {
		var batch api.Events
		if line := lines.Bytes(); len(line) > 2 {
			must.OK(t, json.Unmarshal(line, &batch))
			if batch.Index <= index {
				t.Fatalf("the index goes from %d to %d", index, batch.Index)
			}
			index = batch.Index
		}
	}
	if lines.Err() != nil || index == 0 {
		t.Errorf("the stream ends at index %d: %v", index, lines.Err())
	}
	must.OK(t, conn.Close())
	<-m.closed
}
