package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

// floorRole is the bare server. Its arguments are a socket, a Content-Type, and a file with the body of every answer.
func floorRole(ctx context.Context, args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("the floor takes a socket, a Content-Type and a file, not %q", args)
	}
	body, err := os.ReadFile(args[2])
	if err != nil {
		return err
	}
	listener, err := net.Listen("unix", args[0])
	if err != nil {
		return err
	}
	return serve(ctx, listener, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", args[1])
		_, _ = w.Write(body)
	})
}

// taskRole is a task of an allocation under test: a server on the group's port.
func taskRole(ctx context.Context, _ []string) error {
	listener, err := net.Listen("tcp", os.Getenv("NOMAD_ADDR_http"))
	if err != nil {
		return err
	}
	return serve(ctx, listener, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
}

func serve(ctx context.Context, listener net.Listener, handler http.HandlerFunc) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}

type floor struct {
	*process
	socket string
}

// floor starts a bare server that gives the reply, and waits for its first 200. The floor is there with an error, too,
// once it has been started.
func (env *environment) floor(ctx context.Context, r reply, request []byte) (*floor, error) {
	body, socket := env.path(".body"), env.path(".sock")
	if err := os.WriteFile(body, r.body, 0o644); err != nil {
		return nil, err
	}
	p, err := start(env.bare, "role-floor", socket, r.contentType, body)
	if err != nil {
		return nil, err
	}
	return &floor{process: p, socket: socket}, p.until(ctx, "the floor", startTime, pollInterval, func() bool {
		r, err := exchange(socket, request)
		return err == nil && r.status == http.StatusOK
	})
}

// A pair is a taskapi that serves a task, and a floor that gives the same reply to the same request once it is needed.
type pair struct {
	agent      *agent
	floor      *floor
	reply      reply
	ours, bare target
}

// pair returns the taskapi that the rounds of a measurement share, once its checks have succeeded. It is started with
// the flags.
func (env *environment) pair(ctx context.Context, flags ...string) (*pair, error) {
	if env.serving != nil {
		return env.serving, nil
	}
	s, err := env.agent(env.path(".data"), server(env.self, "role-task"), flags...)
	if err != nil {
		return nil, err
	}
	p := &pair{agent: s}
	env.serving = p
	if err := s.until(ctx, "the checks to succeed", startTime, 20*time.Millisecond, func() bool {
		if p.ours, err = s.target(0, checksPath(s.allocID)); err == nil {
			p.reply, err = exchange(p.ours.socket, p.ours.requests[0])
		}
		return err == nil && p.reply.status == http.StatusOK && succeeded(p.reply.body)
	}); err != nil {
		return nil, fmt.Errorf("%w (last status %d)", err, p.reply.status)
	}
	p.ours.pid = s.cmd.Process.Pid
	return p, nil
}

func (env *environment) withFloor(ctx context.Context, flags ...string) (*pair, error) {
	p, err := env.pair(ctx, flags...)
	if err != nil || p.floor != nil {
		return p, err
	}
	if p.floor, err = env.floor(ctx, p.reply, p.ours.requests[0]); err != nil {
		return nil, err
	}
	p.bare = target{socket: p.floor.socket, requests: p.ours.requests, pid: p.floor.cmd.Process.Pid}
	return p, nil
}

// succeeded reports whether both checks of the server have succeeded.
func succeeded(body []byte) bool {
	var checks map[string]struct{ Status string }
	if json.Unmarshal(body, &checks) != nil || len(checks) != 2 {
		return false
	}
	for _, check := range checks {
		if check.Status != "success" {
			return false
		}
	}
	return true
}

// stopInto ends both. A server that doesn't end makes a measurement fail that went well until then.
func (p *pair) stopInto(err *error) {
	p.agent.stopInto(err)
	if p.floor != nil {
		*err = errors.Join(*err, p.floor.stop())
	}
}
