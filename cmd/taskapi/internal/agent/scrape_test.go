package agent

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestFewConns: a connection too many is closed at once, and one that has ended makes room for another.
func TestFewConns(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newFewConns(inner, 2)
	accepted := make(chan net.Conn, 10)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	})
	defer accepting.Wait()
	defer l.Close()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute)) // a hung test ends
		return conn
	}
	dial()
	dial()
	first := <-accepted
	<-accepted
	closed := func(conn net.Conn) bool {
		_, err := conn.Read(make([]byte, 1))
		return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	}
	if !closed(dial()) {
		t.Error("a third is served")
	}
	first.Close()
	first.Close() // room for one, not two
	dial()
	last := <-accepted
	if !closed(dial()) {
		t.Error("a third is served once another has been closed twice")
	}
	last.Close()
}

func TestMetricsAddress(t *testing.T) {
	for text, want := range map[string]string{
		"127.0.0.1:9100": "127.0.0.1:9100", "[::1]:0": "[::1]:0", "localhost:80": "127.0.0.1:80", "LocalHost:80": "127.0.0.1:80", "0.0.0.0:9100": "0.0.0.0:9100",
	} {
		if got, err := metricsAddress(text); err != nil || got.String() != want {
			t.Errorf("%q = %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", ":9100", "9100", "localhost", "host:1", "127.0.0.1:-1", "127.0.0.1:65536", "::1:80", "unix:///x"} {
		if got, err := metricsAddress(text); err == nil {
			t.Errorf("%q = %v", text, got)
		}
	}
}

// TestScraperHasNoOtherRoute: net/http answers nothing by itself.
func TestScraperHasNoOtherRoute(t *testing.T) {
	at := make(chan string, 1)
	s, err := startScraper("127.0.0.1:0", false, slog.New(slog.DiscardHandler), func(url string) { at <- url })
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	s.begin()
	address := strings.TrimSuffix(strings.TrimPrefix(<-at, "http://"), "/metrics")
	for _, head := range []string{"OPTIONS * HTTP/1.1", "OPTIONS /v1/allocations HTTP/1.1", "GET /v1/allocations HTTP/1.1", "GET * HTTP/1.1"} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, head+"\r\nHost: localhost\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || response.StatusCode != http.StatusNotFound && response.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %v, %v; want 404 or 400", head, response, err)
		}
	}
}
