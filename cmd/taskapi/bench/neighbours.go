package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"taskapi/cmd/taskapi/bench/internal/load"
)

// The busy callers beside a calm neighbour, each a task with a socket of its own, and the connections of each.
const (
	busyCallers     = 2
	busyConnections = 64
)

// neighbourPause is how long the neighbour rests between its requests, so that nobody could call it busy.
const neighbourPause = 2 * time.Millisecond

// measureNeighbours drives a task's socket alone and beside busy callers on the sockets of other tasks, in turn.
func measureNeighbours(ctx context.Context, env *environment, o options, table io.Writer) (err error) {
	s, err := env.group(ctx, env.path(".data"), 1+busyCallers)
	if err != nil {
		return err
	}
	defer s.stopInto(&err)
	var targets []target
	for i := range 1 + busyCallers {
		t, err := s.target(i, "/v1/allocation/"+s.allocID)
		if err != nil {
			return err
		}
		targets = append(targets, t)
	}
	fmt.Fprintf(table, besideTitle, fmt.Sprintf("a neighbour of %d busy callers", busyCallers), "busy")
	name := fmt.Sprintf("1 calm connection beside %d for each", busyConnections)
	return env.beside(ctx, o, table, name, targets[1:], busyConnections, func() (load.Result, error) {
		return drive(ctx, targets[0], 1, neighbourPause, o)
	})
}
