package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

// floorRole is the bare server: arguments are the socket, a Content-Type, and a file that holds the body to answer.
func floorRole(ctx context.Context, args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("the floor takes a socket, a Content-Type and a file, not %q", args)
	}
	contentType := args[1]
	body, err := os.ReadFile(args[2])
	if err != nil {
		return err
	}
	listener, err := net.Listen("unix", args[0])
	if err != nil {
		return err
	}
	return serve(ctx, listener, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(body)
	})
}

// serve answers until ctx ends.
func serve(ctx context.Context, listener net.Listener, handler http.HandlerFunc) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}

// A floor is a bare server that runs.
type floor struct {
	*process
	socket string
}

// floor starts a bare server that gives the reply. It may not answer yet.
func (env *environment) floor(r reply) (*floor, error) {
	body, socket := env.path(".body"), env.path(".sock")
	if err := os.WriteFile(body, r.body, 0o644); err != nil {
		return nil, err
	}
	p, err := start(env.bare, "role-floor", socket, r.contentType, body)
	if err != nil {
		return nil, err
	}
	return &floor{process: p, socket: socket}, nil
}

// answers waits for the first 200, and returns when it came.
func (f *floor) answers(ctx context.Context, request []byte) (time.Time, error) {
	err := f.until(ctx, "the floor", startTime, pollInterval, func() bool {
		r, err := exchange(f.socket, request)
		return err == nil && r.status == http.StatusOK
	})
	return time.Now(), err
}

// taskRole is the task of the allocation under test: a server on the group's port.
func taskRole(ctx context.Context, _ []string) error {
	listener, err := net.Listen("tcp", os.Getenv("NOMAD_ADDR_http"))
	if err != nil {
		return err
	}
	return serve(ctx, listener, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
}
