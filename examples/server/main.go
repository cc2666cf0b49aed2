// Command server is the demo's web server. It answers / with a greeting that another task wrote and /healthz with "ok",
// reads the greeting again on SIGHUP, and ends gracefully on SIGINT and SIGTERM. It knows nothing of taskapi: the port
// and the folder come from the variables that every Nomad task has.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)

	addr := os.Getenv("NOMAD_ADDR_http")
	if addr == "" {
		return errors.New(`NOMAD_ADDR_http is not set; the group needs a port "http"`)
	}
	site := &site{greetingFile: filepath.Join(os.Getenv("NOMAD_ALLOC_DIR"), "data", "greeting.txt")}
	if err := site.reload(); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf("serving on http://%s/ as process %d\n", addr, os.Getpid())
	return serve(ctx, listener, site, hangup)
}

// serve answers requests until ctx ends, and lets those that run finish.
func serve(ctx context.Context, listener net.Listener, site *site, hangup <-chan os.Signal) error {
	server := &http.Server{Handler: site.handler(), ReadHeaderTimeout: 5 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	for {
		select {
		case err := <-failed:
			return err
		case <-hangup:
			if err := site.reload(); err != nil {
				fmt.Fprintln(os.Stderr, "SIGHUP: keeping the old greeting:", err)
				continue
			}
			fmt.Println("SIGHUP: read the greeting again")
		case <-ctx.Done():
			fmt.Println("stopping")
			bounded, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			return server.Shutdown(bounded)
		}
	}
}

// A page is what / answers, as JSON.
type page struct {
	Greeting string // the text that the init task left
	Read     int64  // how often this process has read it
	Request  int64  // the number of this request in this process
	PID      int
}

type site struct {
	greetingFile string
	greeting     atomic.Value // string
	reads        atomic.Int64
	requests     atomic.Int64
}

func (s *site) reload() error {
	text, err := os.ReadFile(s.greetingFile)
	if err != nil {
		return fmt.Errorf("read the greeting: %w", err)
	}
	s.greeting.Store(strings.TrimSpace(string(text)))
	s.reads.Add(1)
	return nil
}

func (s *site) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(page{
			Greeting: s.greeting.Load().(string),
			Read:     s.reads.Load(),
			Request:  s.requests.Add(1),
			PID:      os.Getpid(),
		})
	})
	return mux
}
