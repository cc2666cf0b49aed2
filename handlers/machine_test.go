package handlers_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

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
	once   sync.Once
	closed chan struct{}
	answer *http.Response // nil for the events
}

func (m *busyMachine) Self() route.Alloc                  { return m.self }
func (m *busyMachine) Index() uint64                      { return 1 }
func (m *busyMachine) Wait(ctx context.Context, _ uint64) { <-ctx.Done() }
func (m *busyMachine) Allocations(context.Context) ([]*api.Allocation, error) {
	return []*api.Allocation{m.self.Snapshot()}, nil
}

func (m *busyMachine) Ask(context.Context, string, *http.Request) (*http.Response, error) {
	if m.answer != nil {
		return m.answer, nil
	}
	return &http.Response{StatusCode: http.StatusOK, Body: m}, nil
}

func (m *busyMachine) Find(context.Context, string) (*machine.Found, error) {
	return &machine.Found{Alloc: m.self.Snapshot()}, nil
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
	m.once.Do(func() { close(m.closed) })
	return nil
}

// dial serves the machine, and returns a connection to it.
func (m *busyMachine) dial(t *testing.T) net.Conn { return dialMachine(t, m) }

// dialMachine serves a machine, and returns a connection to it.
func dialMachine(t *testing.T, m machine.Machine, change ...func(*handlers.Config)) net.Conn {
	t.Helper()
	config := handlers.Config{Server: handlers.Server{
		Authenticator: &streamAuthenticator{expires: lasting}, Allocs: allocs{}, Logger: slog.New(slog.DiscardHandler),
		PeerOf: func(net.Conn) (auth.Peer, error) { return peer, nil },
	}}
	for _, f := range change {
		f(&config)
	}
	path := filepath.Join(t.TempDir(), "s")
	listener := must.Get(net.Listen("unix", path))(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- handlers.NewMachine(config, m).Serve(ctx, listener, taskSocket) }()
	t.Cleanup(func() {
		cancel()
		must.OK(t, <-ended)
	})
	conn := must.Get(net.Dial("unix", path))(t)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// waitingMachine has one allocation, whose process waits until its client has gone.
type waitingMachine struct{ *busyMachine }

func (m waitingMachine) Ask(ctx context.Context, _ string, _ *http.Request) (*http.Response, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestMachinesWaitEndsWithItsToken: also while another process waits, whose requests have a token of their own.
func TestMachinesWaitEndsWithItsToken(t *testing.T) {
	eachMeanwhile(t, func(t *testing.T, authenticator *auth.Authenticator, token string, happens func(), allowed bool) {
		alloc := newAlloc(t)
		dial, stop := bubbledBy(t, alloc, func(c handlers.Config) *handlers.API {
			return handlers.NewMachine(c, waitingMachine{&busyMachine{self: alloc}})
		}, func(c *handlers.Config) { c.Authenticator = authenticator })
		c, ended := dial(), make(chan int, 1)
		defer c.Close()
		go func() {
			_, _ = io.WriteString(c, head("GET", "/v1/allocation/"+allocID+"?index=34&wait=9m", token, ""))
			ended <- statusOf(c)
		}()
		synctest.Wait() // it waits
		happens()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if done := len(ended) == 1; done == allowed {
			t.Errorf("the wait has ended: %v", done)
		}
		stop()
		want := http.StatusForbidden
		if allowed {
			want = http.StatusServiceUnavailable
		}
		if got := <-ended; got != want {
			t.Errorf("the wait was answered with %d, want %d", got, want)
		}
	})
}

// emptyMachine has no allocation, and changes whenever somebody waits for it.
type emptyMachine struct {
	*busyMachine
	index *atomic.Uint64
}

func (m emptyMachine) Index() uint64                                          { return m.index.Load() }
func (m emptyMachine) Wait(context.Context, uint64)                           { m.index.Add(1) }
func (m emptyMachine) Find(context.Context, string) (*machine.Found, error)   { return nil, nil }
func (m emptyMachine) Allocations(context.Context) ([]*api.Allocation, error) { return nil, nil }
func (m emptyMachine) OfJob(context.Context, string, string) ([]*api.Allocation, error) {
	return nil, nil
}

// noAllocs is the machine's socket, where no token is an allocation's.
type noAllocs struct{}

func (noAllocs) Get(string) (handlers.Alloc, bool) { return nil, false }

// TestMachinesMissing: an object that does not exist has an index, from which a client waits until the machine has
// changed.
func TestMachinesMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc, index := newAlloc(t), new(atomic.Uint64)
		index.Store(34)
		dial, stop := bubbledBy(t, alloc, func(c handlers.Config) *handlers.API {
			c.Allocs = noAllocs{}
			return handlers.NewMachine(c, emptyMachine{&busyMachine{self: alloc}, index})
		})
		defer stop()
		for _, path := range []string{
			"/v1/job/x", "/v1/job/x/versions", "/v1/job/x/summary", "/v1/allocation/" + otherID, "/v1/evaluation/" + otherID,
		} {
			before, c := index.Load(), dial()
			_, _ = fmt.Fprint(c, head("GET", fmt.Sprintf("%s?index=%d", path, before), operator, ""))
			response := must.Get(http.ReadResponse(bufio.NewReader(c), nil))(t)
			c.Close()
			if response.StatusCode != 404 || response.Header.Get("X-Nomad-Index") == "" || index.Load() != before+1 {
				t.Errorf("%s: %s %v after %d changes; want 404 with an index after one", path, response.Status,
					response.Header, index.Load()-before)
			}
		}
	})
}

// lastWords is a connection whose other end has closed it. What that end has sent is read once a write has failed.
type lastWords struct {
	io.Reader
	failed chan struct{}
	once   sync.Once
	closed atomic.Bool
}

func (l *lastWords) Write([]byte) (int, error) {
	defer l.once.Do(func() { close(l.failed) })
	return 0, syscall.EPIPE
}

func (l *lastWords) Read(p []byte) (int, error) {
	<-l.failed
	if l.closed.Load() {
		return 0, net.ErrClosed
	}
	return l.Reader.Read(p)
}

func (l *lastWords) Close() error {
	l.closed.Store(true)
	return nil
}

// TestMachinesLastWords: what a command has sent before its end reaches the client, though the client still sends.
func TestMachinesLastWords(t *testing.T) {
	for range 100 { // whether the writer or the reader comes first is chance
		words := &lastWords{Reader: strings.NewReader("the end"), failed: make(chan struct{})}
		m := &busyMachine{self: newAlloc(t), answer: &http.Response{
			StatusCode: http.StatusSwitchingProtocols, Body: words,
			Header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}},
		}}
		conn := m.dial(t)
		_, err := io.WriteString(conn, "GET /v1/client/allocation/"+allocID+"/exec HTTP/1.1\r\nHost: x\r\n"+
			"Connection: Upgrade\r\nUpgrade: websocket\r\nX-Nomad-Token: "+operator+"\r\n\r\nmore")
		must.OK(t, err)
		text, err := io.ReadAll(conn)
		if err != nil || !strings.HasSuffix(string(text), "\r\n\r\nthe end") {
			t.Fatalf("the client reads %q, %v", text, err)
		}
	}
}

// TestMachineTakesNoSecondToken: a request that is passed on brings no token but that of its header.
func TestMachineTakesNoSecondToken(t *testing.T) {
	m := &busyMachine{self: newAlloc(t), answer: &http.Response{
		StatusCode: http.StatusTeapot, Body: io.NopCloser(strings.NewReader("passed on")),
	}}
	for query, want := range map[string]int{
		"task=web": http.StatusTeapot, "ws_handshake=false": http.StatusTeapot, "ws_handshake": http.StatusBadRequest,
		"ws_handshake=0&ws_handshake=1": http.StatusBadRequest, "token=a": http.StatusBadRequest,
	} {
		conn := m.dial(t)
		_, err := io.WriteString(conn, "GET /v1/client/allocation/"+allocID+"/exec?"+query+" HTTP/1.1\r\nHost: x\r\n"+
			"X-Nomad-Token: "+operator+"\r\n\r\n")
		must.OK(t, err)
		response := must.Get(http.ReadResponse(bufio.NewReader(conn), nil))(t)
		if response.StatusCode != want {
			t.Errorf("%s: %d, want %d", query, response.StatusCode, want)
		}
	}
}

// TestMachinesSlowReader: for a client that does not read the events of a machine, no more of them are read than fit
// into a few buffers. A client that reads again gets them in order, and the last one's end ends everything.
func TestMachinesSlowReader(t *testing.T) {
	m := &busyMachine{self: newAlloc(t), closed: make(chan struct{})}
	conn := m.dial(t)
	must.Get(io.WriteString(conn, head("GET", streamPath, operator, "")))(t)
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
	response := must.Get(http.ReadResponse(bufio.NewReader(conn), nil))(t)
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
