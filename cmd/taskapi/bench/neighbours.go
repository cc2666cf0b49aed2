package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"taskapi/cmd/taskapi/bench/internal/load"
)

// The busy callers beside a calm neighbour, each a task with a socket of its own, and the connections of each.
const (
	busyCallers     = 2
	busyConnections = 64
)

// neighbourPause is how long the neighbour rests between its requests: it is one that nobody could call busy.
const neighbourPause = 2 * time.Millisecond

// measureNeighbours drives a task's socket alone and beside busy callers on the sockets of other tasks, in turn.
func measureNeighbours(ctx context.Context, env *environment, o options) (_ *besideRow, err error) {
	s, err := env.group(ctx, callers(1+busyCallers), 1+busyCallers)
	if err != nil {
		return nil, err
	}
	defer s.stopInto(&err)
	var targets []target
	for i := range 1 + busyCallers {
		t, err := s.caller(i)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	name := fmt.Sprintf("1 calm connection beside %d for each", busyConnections)
	row, err := env.beside(ctx, o, name, targets[1:], busyConnections, func() (load.Result, error) { return calm(ctx, targets[0], o) })
	return &row, err
}

// calm asks one request after the other, with a rest between them.
func calm(ctx context.Context, t target, o options) (load.Result, error) {
	return load.Run(ctx, load.Config{
		Socket: t.socket, Connections: 1, Requests: t.requests, Warmup: warmup, For: o.of(time.Second), Pause: neighbourPause,
	})
}

// callers returns a job of so many tasks that do nothing and have an identity in a file each: others speak for them.
func callers(tasks int) string {
	var blocks strings.Builder
	for i := range tasks {
		fmt.Fprintf(&blocks, sleeperTask, i, "      identity {\n        file = true\n      }")
	}
	return fmt.Sprintf(groupFile, blocks.String())
}

// caller returns the socket of one of them, and the request for the allocation with its token.
func (s *agent) caller(i int) (target, error) {
	dir := filepath.Join(s.dir, fmt.Sprintf("t%d", i))
	token, err := tokenIn(dir)
	if err != nil {
		return target{}, err
	}
	t := target{socket: filepath.Join(dir, "secrets", "api.sock"), requests: [][]byte{get("/v1/allocation/"+s.allocID, token)}}
	r, err := exchange(t.socket, t.requests[0])
	if err == nil && r.status != http.StatusOK {
		err = fmt.Errorf("status %d on %s", r.status, t.socket)
	}
	return t, err
}

// tokenIn returns the token of the task in a directory.
func tokenIn(dir string) (string, error) {
	token, err := os.ReadFile(filepath.Join(dir, "secrets", "nomad_token"))
	return strings.TrimSpace(string(token)), err
}
