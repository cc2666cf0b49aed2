package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"
)

// floorRole is the bare server. Its arguments are a socket, a Content-Type, and a file with the body of every answer.
func floorRole(ctx context.Context, args []string) error {
	body, err := os.ReadFile(args[2])
	if err != nil {
		return err
	}
	listener, err := net.Listen("unix", args[0])
	if err != nil {
		return err
	}
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", args[1])
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
	})
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}

type floor struct {
	*process
	socket string
}

// floor starts a bare server that gives the reply, and waits for its first 200.
func (env *environment) floor(ctx context.Context, r reply, request []byte) (*floor, error) {
	body, socket := env.path(".body"), env.path(".sock")
	if err := os.WriteFile(body, r.body, 0o644); err != nil {
		return nil, err
	}
	p, err := env.start(env.bare, "role-floor", socket, r.contentType, body)
	if err != nil {
		return nil, err
	}
	return &floor{process: p, socket: socket}, p.until(ctx, "the floor", pollInterval, func() bool {
		r, err := exchange(socket, request)
		return err == nil && r.status == http.StatusOK
	})
}

// besideFloor takes a measurement of a task's socket, and of a floor that answers the request as the task's socket
// does. The rounds share the floor.
func (env *environment) besideFloor(ours func(context.Context) (target, error),
	take func(context.Context, options, target) ([]sample, error)) []way {
	return []way{{"taskapi", func(ctx context.Context, o options) ([]sample, error) {
		t, err := ours(ctx)
		if err != nil {
			return nil, err
		}
		return take(ctx, o, t)
	}}, {"floor", func(ctx context.Context, o options) ([]sample, error) {
		t, err := ours(ctx)
		if err == nil && env.bottom == nil {
			var r reply
			if r, err = exchange(t.socket, t.requests[0]); err == nil {
				env.bottom, err = env.floor(ctx, r, t.requests[0])
			}
		}
		if err != nil {
			return nil, err
		}
		return take(ctx, o, target{socket: env.bottom.socket, requests: t.requests, pid: env.bottom.cmd.Process.Pid})
	}}}
}
