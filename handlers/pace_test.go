package handlers_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/handlers/events"
)

// sockets are several sockets of one API, in memory.
type sockets struct {
	tb    testing.TB
	dials []func() net.Conn
	stop  func()
}

func newSockets(t *testing.T, n int, change ...func(*handlers.Config)) *sockets {
	t.Helper()
	config := handlers.Config{
		Authenticator: fakeAuthenticator{}, Allocs: allocs{newAlloc(t)}, Logger: slog.New(slog.DiscardHandler),
		PeerOf: func(net.Conn) (auth.Peer, error) { return peer, nil },
	}
	for _, f := range change {
		f(&config)
	}
	a := handlers.NewWithTestRoutes(config)
	ctx, cancel := context.WithCancel(t.Context())
	s, ended := &sockets{tb: t}, make(chan error, n)
	for range n {
		closed, shut := context.WithCancel(t.Context())
		listener := &pipes{make(chan net.Conn), closed, shut}
		go func() { ended <- a.Serve(ctx, listener, auth.Owner{AllocationID: allocID, Task: "server"}) }()
		s.dials = append(s.dials, func() net.Conn {
			ours, theirs := net.Pipe()
			listener.accept <- theirs
			return ours
		})
	}
	s.stop = func() {
		cancel()
		for range n {
			if err := <-ended; err != nil {
				t.Errorf("Serve = %v", err)
			}
		}
	}
	return s
}

// ask sends so many requests to a socket on one connection, and returns how many were answered when it was closed or
// all were, and how long that took.
func (s *sockets) ask(socket, requests int) (answered int, took time.Duration) {
	c := s.dials[socket]()
	defer c.Close()
	return s.askOn(c, requests)
}

func (s *sockets) askOn(c net.Conn, requests int) (answered int, took time.Duration) {
	start, reader := time.Now(), bufio.NewReader(c)
	text := head("GET", "/v1/agent/health", goodToken, "")
	for ; answered < requests; answered++ {
		if _, err := io.WriteString(c, text); err != nil {
			break
		}
		response, err := http.ReadResponse(reader, nil)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) {
			break
		}
		if err != nil {
			s.tb.Error(err)
			break
		}
		_, _ = io.Copy(io.Discard, response.Body)
		if response.StatusCode != http.StatusOK {
			s.tb.Errorf("status %d", response.StatusCode)
		}
	}
	return answered, time.Since(start)
}

// TestStreamsArePaced: the lines of streams wait for their turn as requests do.
func TestStreamsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const streams, changes = 32, 250
		log := events.New()
		s := newSockets(t, 2, streaming(log))
		defer s.stop()
		s.ask(0, 1)
		s.ask(1, 1)
		var open []*bufio.Reader
		for range streams {
			c := s.dials[0]()
			defer c.Close()
			go func() { _, _ = io.WriteString(c, head("GET", streamPath, goodToken, "")) }()
			response, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, bufio.NewReader(response.Body))
		}
		time.Sleep(time.Second)
		for index := range uint64(changes) {
			put(t, log, 40+index, nil)
		}
		start := time.Now()
		var all sync.WaitGroup
		for _, reader := range open {
			all.Go(func() {
				for lines := 0; lines < changes; {
					line, err := reader.ReadString('\n')
					if err != nil {
						t.Error(err)
						return
					}
					if line != "{}\n" {
						lines++
					}
				}
			})
		}
		all.Wait()
		if took := time.Since(start); took < 100*time.Millisecond { // of this clock, which stands still while nobody waits
			t.Errorf("%d lines on %d streams took %v: they have not waited for their turn", streams*changes, streams, took)
		}
	})
}

// TestIdleStreamsPaceNobody: a stream without events makes its socket no busy neighbour.
func TestIdleStreamsPaceNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSockets(t, 2, streaming(events.New()))
		defer s.stop()
		c := s.dials[1]()
		defer c.Close()
		go func() { _, _ = io.Copy(io.Discard, c) }()
		if _, err := io.WriteString(c, head("GET", streamPath, goodToken, "")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the stream is open
		s.ask(0, 1)
		time.Sleep(35 * time.Second) // three heartbeats
		if _, took := s.ask(0, 2000); took != 0 {
			t.Errorf("beside an idle stream 2,000 requests took %v", took)
		}
	})
}
