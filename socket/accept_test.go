package socket_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/socket"
)

const refusal = "too many\n"

// serve accepts until the listener closes and hands out what it accepted.
func serve(t *testing.T, l *socket.Listener) <-chan *socket.Conn {
	t.Helper()
	conns := make(chan *socket.Conn, 1024)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns <- c.(*socket.Conn)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
		for len(conns) > 0 {
			(<-conns).Close()
		}
	})
	return conns
}

func dial(t *testing.T, path string) net.Conn {
	t.Helper()
	c := must.Get(socket.Dial(context.Background(), path))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestOverTheCapIsAnsweredAndClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	l := newListener(t, socket.Config{Path: path, MaxConns: 2, Refusal: []byte(refusal)})
	conns := serve(t, l)
	dial(t, path)
	dial(t, path)
	second := <-conns

	refused := uint64(0)
	for late := true; late; refused++ { // a busy machine may leave the client too little time
		third, began := dial(t, path), time.Now()
		// A client that sends before it reads sees the answer too.
		_, sent := io.WriteString(third, strings.Repeat("request", 1000))
		got, err := io.ReadAll(third)
		third.Close()
		if late = time.Since(began) > socket.LingerTime; !late && (sent != nil || err != nil || string(got) != refusal) {
			t.Errorf("wrote: %v; read %q, %v, want %q", sent, got, err, refusal)
		}
	}

	second.Close()
	dial(t, path)
	<-conns
	<-conns
	want := socket.Stats{Accepted: 3, Refused: refused, Open: 2}
	if got := l.Stats(); got != want {
		t.Errorf("Stats() = %+v, want %+v", got, want)
	}
}

// Sockets share a budget, and no set of them can take what is guaranteed to another.
func TestBudgetIsShared(t *testing.T) {
	dir, budget := t.TempDir(), socket.NewBudget(6)
	shares := map[string]*socket.Share{"/a": budget.Share(1), "/b": budget.Share(2)} // and three for both
	conns, listeners := map[string]<-chan *socket.Conn{}, map[string]*socket.Listener{}
	for name, share := range shares {
		l := newListener(t, socket.Config{Path: dir + name, MaxConns: 10, Share: share, Refusal: []byte(refusal)})
		listeners[name], conns[name] = l, serve(t, l)
	}
	held := map[string][]*socket.Conn{}
	open := func(name string) {
		t.Helper()
		dial(t, dir+name)
		select {
		case c := <-conns[name]:
			held[name] = append(held[name], c)
		case <-time.After(polltest.Deadline()):
			t.Fatalf("connection %d of %s is not accepted", len(held[name])+1, name)
		}
	}
	closeOne := func(name string) {
		t.Helper()
		last := len(held[name]) - 1
		must.OK(t, held[name][last].Close())
		if err := held[name][last].Close(); !errors.Is(err, net.ErrClosed) { // gives back nothing
			t.Errorf("second close of a connection: %v, want net.ErrClosed", err)
		}
		held[name] = held[name][:last]
	}
	refused := func(name string) {
		t.Helper()
		if got, err := io.ReadAll(dial(t, dir+name)); err != nil || string(got) != refusal {
			t.Errorf("with %d and %d open, one more of %s: %q, %v; want %q", len(held["/a"]), len(held["/b"]), name, got, err,
				refusal)
		}
	}
	for range 4 {
		open("/a")
	}
	refused("/a") // its own and all that is common
	open("/b")
	open("/b")
	refused("/b")
	closeOne("/b")
	refused("/a") // that was of what /b is guaranteed
	open("/b")
	closeOne("/a")
	open("/b") // and that was common
	refused("/a")
	refused("/b")
	for name := range held {
		for len(held[name]) > 0 {
			closeOne(name)
		}
	}
	if a, b := listeners["/a"].Stats().Open, listeners["/b"].Stats().Open; a != 0 || b != 0 {
		t.Errorf("all are closed, and open are %d and %d", a, b)
	}
	for range 4 { // nothing was lost
		open("/b")
	}
}

func TestAFloodIsAnsweredWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	var log polltest.Log
	logger := slog.New(slog.NewTextHandler(&log, nil))
	l := newListener(t, socket.Config{Path: path, MaxConns: 1, Refusal: []byte(refusal), Logger: logger})
	conns := serve(t, l)
	dial(t, path)
	<-conns
	const flood = 500
	var wg sync.WaitGroup
	for range flood {
		wg.Go(func() {
			c, err := socket.Dial(context.Background(), path)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if got, err := io.ReadAll(c); err != nil || string(got) != refusal {
				t.Errorf("read %q, %v, want %q", got, err, refusal)
			}
		})
	}
	wg.Wait()
	if got, want := l.Stats(), (socket.Stats{Accepted: 1, Refused: flood, Open: 1}); got != want {
		t.Errorf("Stats() = %+v, want %+v", got, want)
	}
	if got := strings.Count(log.String(), "\n"); got == 0 || got > flood/10 {
		t.Errorf("%d lines in the log for %d refusals", got, flood)
	}
}

// A refused client that never reads, sends or closes can't keep its place for long.
func TestARefusedClientThatLingersIsDropped(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	l := newListener(t, socket.Config{Path: path, MaxConns: 1, Refusal: []byte(refusal)})
	conns := serve(t, l)
	dial(t, path)
	<-conns
	const more = 150 // than are held
	for range more {
		dial(t, path)
	}
	// All are answered by now, and only waited for by Close.
	if got, err := io.ReadAll(dial(t, path)); err != nil || string(got) != refusal {
		t.Errorf("read %q, %v, want %q", got, err, refusal)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if got := l.Stats().Refused; got != more+1 {
		t.Errorf("%d were refused, want %d", got, more+1)
	}
}

// A client that has connected before the end is served, also when nobody had time to accept its connection.
func TestConnectionsBeforeTheEndAreAccepted(t *testing.T) {
	const before = 20
	for {
		path := filepath.Join(t.TempDir(), "api.sock")
		l := newListener(t, socket.Config{Path: path})
		for range before {
			dial(t, path)
		}
		took := make(chan time.Duration)
		go func() {
			began := time.Now()
			_ = l.Close() // newListener looks at its error
			took <- time.Since(began)
		}()
		for _, err := os.Lstat(path); err == nil; _, err = os.Lstat(path) {
			time.Sleep(time.Millisecond / 10)
		}
		accepted := 0
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			c.Close()
			accepted++
		}
		if waited := <-took; accepted == before {
			return
		} else if waited < socket.BacklogTime { // otherwise this goroutine had no turn on a busy machine
			t.Fatalf("%d of %d connections were accepted within %v", accepted, before, waited)
		}
	}
}

func TestUnknownPeersAreClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	// a place that is not given back is missed
	l := newListener(t, socket.Config{Path: path, Share: socket.NewBudget(1).Share(0)})
	l.FailPeers(2)
	conns := serve(t, l)
	for range 2 {
		if got, err := io.ReadAll(dial(t, path)); err != nil || len(got) != 0 {
			t.Errorf("read %q, %v, want to be closed", got, err)
		}
	}
	dial(t, path)
	if c := <-conns; c.Peer().PID != int32(os.Getpid()) {
		t.Errorf("Peer() = %+v", c.Peer())
	}
	if got, want := l.Stats(), (socket.Stats{Accepted: 1, Unidentified: 2, Open: 1}); got != want {
		t.Errorf("Stats() = %+v, want %+v", got, want)
	}
}

// Reading credentials off a connection that is closed, and off a socket that never had a peer, has to be an error.
func TestReadPeerFailsClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dgram")
	unconnected := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}))(t)
	defer unconnected.Close()
	if peer, err := socket.ReadPeer(unconnected); err == nil {
		t.Errorf("a socket without a peer: %+v", peer)
	}
	unconnected.Close()
	if peer, err := socket.ReadPeer(unconnected); err == nil {
		t.Errorf("a closed connection: %+v", peer)
	}
}

func TestAcceptOutlivesRunningOutOfDescriptors(t *testing.T) {
	path := filepath.Join(newOpenDir(t), "api.sock")
	p, said := newRole(t, os.Getuid(), "starve "+path)
	if said != wordListening {
		t.Fatal(said)
	}
	c := dial(t, path)
	must.Get(io.WriteString(p.stdin, "\n"))(t)
	_ = c.SetReadDeadline(time.Now().Add(polltest.Deadline()))
	if got, err := io.ReadAll(c); err != nil || string(got) != "alive" {
		t.Errorf("read %q, %v, want %q", got, err, "alive")
	}
}

func TestOnlyTheOwnerConnects(t *testing.T) {
	needRoot(t)
	dir := newOpenDir(t)
	path := dir + "/api.sock"
	l := newListener(t, socket.Config{Path: path, UID: taskUID, GID: taskUID})
	p, said := newRole(t, taskUID, "dial "+path)
	if said != wordConnected {
		t.Fatalf("the owner: %s", said)
	}
	c := must.Get(l.Accept())(t)
	defer c.Close()
	want := socket.Peer{UID: taskUID, GID: taskUID, PID: int32(p.cmd.Process.Pid)}
	if got := c.(*socket.Conn).Peer(); got != want {
		t.Errorf("Peer() = %+v, want %+v", got, want)
	}
	if _, said := newRole(t, taskUID+1, "dial "+path); !strings.Contains(said, "permission denied") {
		t.Errorf("another user: %s", said)
	}
}
