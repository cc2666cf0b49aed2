package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

func TestServeReadsTheGreetingAgainOnHangup(t *testing.T) {
	s := &site{greetingFile: filepath.Join(t.TempDir(), "greeting.txt")}
	write := func(text string) {
		must.OK(t, os.WriteFile(s.greetingFile, []byte(text), 0o644))
	}
	write("one\n")
	must.OK(t, s.reload())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	ctx, stop := context.WithCancel(t.Context())
	hangup := make(chan os.Signal)
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, listener, s, hangup) }()
	url := "http://" + listener.Addr().String()

	if got := fetch(t, url); got.Greeting != "one" || got.Read != 1 || got.Request != 1 || got.PID != os.Getpid() {
		t.Errorf("first page: %+v", got)
	}
	write("two\n")
	hangup <- syscall.SIGHUP
	hangup <- syscall.SIGHUP // taken up only after the first was dealt with
	if got := fetch(t, url); got.Greeting != "two" || got.Read < 2 || got.Request != 2 {
		t.Errorf("page after SIGHUP: %+v", got)
	}
	must.OK(t, os.Remove(s.greetingFile))
	hangup <- syscall.SIGHUP
	if got := fetch(t, url); got.Greeting != "two" {
		t.Errorf("without the file, the page has the greeting %q, want the old one", got.Greeting)
	}
	stop()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("serve ended with %v", err)
		}
	case <-time.After(polltest.Deadline()):
		t.Error("serve did not end")
	}
}

func TestReloadNamesTheFileThatIsMissing(t *testing.T) {
	s := &site{greetingFile: filepath.Join(t.TempDir(), "none")}
	if err := s.reload(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want an error that the file does not exist", err)
	}
}

func fetch(t *testing.T, url string) page {
	t.Helper()
	resp, err := http.Get(url)
	must.OK(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must.OK(t, err)
	var p page
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return p
}
