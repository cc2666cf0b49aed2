package agent

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/internal/must"
)

// TestScraperWarns of a port that any user can take while taskapi does not listen, and of no other address.
func TestScraperWarns(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.9:0") // at which nobody else asks for a port
	must.OK(t, err)
	port := free.Addr().String()
	free.Close()
	for address, want := range map[string]bool{port: true, "127.0.0.1:0": false, "unix://" +
		filepath.Join(t.TempDir(), "s"): false} {
		var log strings.Builder
		s := must.Get(startScraper(address, false, slog.New(slog.NewTextHandler(&log, nil)), func(string) {}))(t)
		s.close()
		if got := strings.Contains(log.String(), "any user of this machine can listen on this port"); got != want {
			t.Errorf("%s: %q", address, log.String())
		}
	}
}

// TestScraperOnASocket: every process that can connect gets an answer, under any Host.
func TestScraperOnASocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.sock")
	at := make(chan string, 1)
	s := must.Get(startScraper("unix://"+path, false, slog.New(slog.DiscardHandler), func(url string) { at <- url }))(t)
	defer s.close()
	s.serve(nil)
	if url := <-at; url != "unix://"+path {
		t.Errorf("served at %s", url)
	}
	conn := must.Get(net.Dial("unix", path))(t)
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET /v1/nothing HTTP/1.1\r\nHost: any\r\n\r\n")
	if response, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil ||
		response.StatusCode != http.StatusNotFound {
		t.Errorf("%v, %v", response, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("%v, %v", info, err)
	}
}

// TestScraperHasNoOtherRoute: net/http answers nothing by itself.
func TestScraperHasNoOtherRoute(t *testing.T) {
	at := make(chan string, 1)
	s := must.Get(startScraper("127.0.0.1:0", false, slog.New(slog.DiscardHandler), func(url string) { at <- url }))(t)
	defer s.close()
	s.serve(nil)
	address := strings.TrimSuffix(strings.TrimPrefix(<-at, "http://"), "/metrics")
	for _, head := range []string{
		"OPTIONS * HTTP/1.1", "OPTIONS /v1/allocations HTTP/1.1", "GET /v1/allocations HTTP/1.1", "GET * HTTP/1.1",
	} {
		conn, err := net.Dial("tcp", address)
		must.OK(t, err)
		defer conn.Close()
		_, _ = io.WriteString(conn, head+"\r\nHost: localhost\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || response.StatusCode != http.StatusNotFound && response.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %v, %v; want 404 or 400", head, response, err)
		}
	}
}
