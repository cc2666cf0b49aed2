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
	"taskapi/internal/same"
)

// TestScraperWarns of a port that any user can take while taskapi does not listen, and of no other address.
func TestScraperWarns(t *testing.T) {
	free := must.Get(net.Listen("tcp", "127.0.0.9:0"))(t) // at which nobody else asks for a port
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

// TestScraperHasNoOtherRoute: every process that can connect gets an answer, under any Host, and net/http answers
// nothing by itself.
func TestScraperHasNoOtherRoute(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.sock")
	at := make(chan string, 1)
	s := must.Get(startScraper("unix://"+path, false, slog.New(slog.DiscardHandler), func(url string) { at <- url }))(t)
	defer s.close()
	s.serve(nil)
	same.As(t, "unix://"+path, <-at, "it is served at")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("%v, %v", info, err)
	}
	for _, head := range []string{
		"OPTIONS * HTTP/1.1", "OPTIONS /v1/allocations HTTP/1.1", "GET /v1/allocations HTTP/1.1", "GET * HTTP/1.1",
	} {
		conn := must.Get(net.Dial("unix", path))(t)
		defer conn.Close()
		_, _ = io.WriteString(conn, head+"\r\nHost: any\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || response.StatusCode != http.StatusNotFound && response.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %v, %v; want 404 or 400", head, response, err)
		}
	}
}
