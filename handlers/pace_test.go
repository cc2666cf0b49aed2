package handlers_test

import (
	"bufio"
	"context"
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
	"taskapi/handlers/internal/transport/transporttest"
	"taskapi/internal/must"
)

// newSockets serves several sockets of one API.
func newSockets(t *testing.T, n int, change ...func(*handlers.Config)) *transporttest.Sockets {
	t.Helper()
	config := handlers.Config{Server: handlers.Server{
		Authenticator: fakeAuthenticator{}, Allocs: allocs{newAlloc(t)}, Logger: slog.New(slog.DiscardHandler),
		PeerOf: func(net.Conn) (auth.Peer, error) { return peer, nil },
	}}
	for _, f := range change {
		f(&config)
	}
	a := handlers.NewWithTestRoutes(config)
	return transporttest.Serve(t, n, head("GET", "/v1/agent/health", goodToken, ""),
		func(ctx context.Context, l net.Listener) error {
			return a.Serve(ctx, l, auth.Owner{AllocationID: allocID, Task: "server"})
		})
}

// TestStreamsArePaced: the lines of streams wait for their turn as requests do.
func TestStreamsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const streams, changes = 32, 250
		log := events.New()
		s := newSockets(t, 2, streaming(log))
		defer s.Stop()
		s.Ask(0, 1)
		s.Ask(1, 1)
		var open []*bufio.Reader
		for range streams {
			c := s.Dials[0]()
			defer c.Close()
			go func() { _, _ = io.WriteString(c, head("GET", streamPath, goodToken, "")) }()
			response := must.Get(http.ReadResponse(bufio.NewReader(c), nil))(t)
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
		defer s.Stop()
		c := s.Dials[1]()
		defer c.Close()
		go func() { _, _ = io.Copy(io.Discard, c) }()
		must.Get(io.WriteString(c, head("GET", streamPath, goodToken, "")))(t)
		synctest.Wait() // the stream is open
		s.Ask(0, 1)
		time.Sleep(35 * time.Second) // three heartbeats
		if _, took := s.Ask(0, 2000); took != 0 {
			t.Errorf("beside an idle stream 2,000 requests took %v", took)
		}
	})
}
