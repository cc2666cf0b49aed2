package main

import (
	"context"
	"fmt"
	"time"

	"taskapi/cmd/taskapi/bench/internal/load"
)

// warmup is how long a round runs before it counts: connections are made and caches filled.
const warmup = 200 * time.Millisecond

// connections are the numbers of connections that throughput is measured with.
var connections = []int{1, 8, 16}

// A throughputRow compares taskapi with the floor.
type throughputRow struct {
	Connections int
	Floor, Ours speed
	Ratio       ratio // of the rates
}

// measureThroughput drives both servers in turn with the same request, each answering as many bytes as the other.
func measureThroughput(ctx context.Context, env *environment, o options) (rows []throughputRow, err error) {
	p, err := env.pair(ctx)
	if err != nil {
		return nil, err
	}
	defer p.stopInto(&err)
	for _, n := range connections {
		var floors, agents []load.Result
		for range o.rounds {
			a, err := drive(ctx, p.bare, n, o)
			if err != nil {
				return nil, fmt.Errorf("the floor with %d connections: %w", n, err)
			}
			b, err := drive(ctx, p.ours, n, o)
			if err != nil {
				return nil, fmt.Errorf("taskapi with %d connections: %w", n, err)
			}
			floors, agents = append(floors, a), append(agents, b)
		}
		rows = append(rows, throughputRow{
			Connections: n, Floor: speedOf(floors), Ours: speedOf(agents), Ratio: ratioOf(agents, floors, load.Result.Rate),
		})
	}
	return rows, nil
}

func drive(ctx context.Context, t target, n int, o options) (load.Result, error) {
	r, err := load.Run(ctx, load.Config{
		Socket: t.socket, Connections: n, Requests: t.requests,
		Warmup: warmup, For: o.of(time.Second),
	})
	if err == nil && r.Replies == 0 {
		err = fmt.Errorf("no reply on %s in %v s: give -seconds more", t.socket, o.seconds)
	}
	return r, err
}
