package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"taskapi/cmd/taskapi/bench/internal/load"
)

// warmup is how long a round runs before it counts: connections are made and caches filled.
const warmup = 200 * time.Millisecond

// measureThroughput sends the same request to both servers in turn. Both answer with the same bytes.
func measureThroughput(ctx context.Context, env *environment, o options, table io.Writer) (err error) {
	p, err := env.pair(ctx)
	if err != nil {
		return err
	}
	defer p.stopInto(&err)
	fmt.Fprintln(table, "authenticated GET checks\tfloor/s\ttaskapi/s\tratio (spread)\tfloor p50\tp99\ttaskapi p50\tp99")
	for _, n := range []int{1, 8, 16} {
		var floors, agents []load.Result
		for range o.rounds {
			a, err := drive(ctx, p.bare, n, 0, o)
			if err != nil {
				return fmt.Errorf("the floor with %d connections: %w", n, err)
			}
			b, err := drive(ctx, p.ours, n, 0, o)
			if err != nil {
				return fmt.Errorf("taskapi with %d connections: %w", n, err)
			}
			floors, agents = append(floors, a), append(agents, b)
		}
		bare, ours := speedOf(floors), speedOf(agents)
		fmt.Fprintf(table, "%d connection(s)\t%.0f\t%.0f\t%v\t%s\t%s\t%s\t%s\n", n, bare.rate, ours.rate,
			ratioOf(collect(agents, load.Result.Rate), collect(floors, load.Result.Rate)),
			micros(bare.p50), micros(bare.p99), micros(ours.p50), micros(ours.p99))
	}
	return nil
}

// drive sends the target's requests for a round. Each connection rests for the pause between a reply and its next
// request.
func drive(ctx context.Context, t target, connections int, pause time.Duration, o options) (load.Result, error) {
	r, err := load.Run(ctx, load.Config{
		Socket: t.socket, Connections: connections, Requests: t.requests,
		Warmup: warmup, For: o.of(time.Second), Pause: pause,
	})
	if err == nil && r.Replies == 0 {
		err = fmt.Errorf("no reply on %s in %v s: give -seconds more", t.socket, o.seconds)
	}
	return r, err
}
