package main

import (
	"context"
	"time"

	"taskapi/internal/load"
)

// The busy callers beside a calm neighbour, each a task with a socket of its own, and the connections of each.
const (
	busyCallers     = 2
	busyConnections = 64
)

// neighbourPause is how long the neighbour rests between its requests, so that nobody could call it busy.
const neighbourPause = 2 * time.Millisecond

// neighbours drives a task's socket alone and beside busy callers on the sockets of other tasks.
func (env *environment) neighbours(ctx context.Context, o options) ([]sample, error) {
	s, err := env.shared(ctx, 1+busyCallers)
	if err != nil {
		return nil, err
	}
	var targets []target
	for i := range 1 + busyCallers {
		t, err := s.target(i, "/v1/allocation/"+s.allocID)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	return env.beside(ctx, targets[1:], busyConnections, func() (load.Result, error) {
		return drive(ctx, targets[0], 1, neighbourPause, o)
	})
}
