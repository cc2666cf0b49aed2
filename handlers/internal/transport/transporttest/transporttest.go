// Package transporttest serves sockets in memory for tests, so that a bubble of testing/synctest holds all of their
// connections, and their deadlines pass in the bubble's time.
package transporttest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// Sockets are several sockets of one server.
type Sockets struct {
	Dials []func() net.Conn // one for each socket
	Stop  func()            // ends the servers, and fails the test for their errors

	tb      testing.TB
	request string
}

// Serve has a function serve each of n sockets. Ask sends the request. A function must end with its context.
func Serve(t testing.TB, n int, request string, serve func(context.Context, net.Listener) error) *Sockets {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s, ended := &Sockets{tb: t, request: request}, make(chan error, n)
	for range n {
		closed, shut := context.WithCancel(t.Context())
		listener := &pipes{make(chan net.Conn), closed, shut}
		go func() { ended <- serve(ctx, listener) }()
		s.Dials = append(s.Dials, func() net.Conn {
			ours, theirs := net.Pipe()
			listener.accept <- theirs
			return ours
		})
	}
	s.Stop = func() {
		cancel()
		for range n {
			if err := <-ended; err != nil {
				t.Errorf("Serve = %v", err)
			}
		}
	}
	return s
}

// Ask sends requests to a socket on one connection, and returns how many were answered when it was closed or
// all were, and how long that took.
func (s *Sockets) Ask(socket, requests int) (answered int, took time.Duration) {
	c := s.Dials[socket]()
	defer c.Close()
	return s.AskOn(c, requests)
}

// AskOn is Ask on a connection that is there.
func (s *Sockets) AskOn(c net.Conn, requests int) (answered int, took time.Duration) {
	start, reader := time.Now(), bufio.NewReader(c)
	for ; answered < requests; answered++ {
		if _, err := io.WriteString(c, s.request); err != nil {
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

// pipes is a listener whose connections are in memory.
type pipes struct {
	accept chan net.Conn
	closed context.Context
	close  context.CancelFunc
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.closed.Done():
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.close(); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }
