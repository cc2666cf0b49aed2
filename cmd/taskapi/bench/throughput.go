package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"taskapi/cmd/taskapi/bench/internal/load"
)

// warmup is how long a round runs before it counts: connections are made and caches filled.
const warmup = 200 * time.Millisecond

// connections are how many connections send the same request.
var connections = []int{1, 8, 16}

// measureThroughput sends the same request to both servers in turn. Both answer with the same bytes.
func measureThroughput(ctx context.Context, env *environment, o options, table io.Writer) (err error) {
	p, err := env.pair(ctx)
	if err != nil {
		return err
	}
	defer p.stopInto(&err)
	fmt.Fprintln(table,
		"authenticated GET checks\tfloor/s\ttaskapi/s\tratio (spread)\tCPU each\tCPU each\tratio (spread)\t"+
			"floor p50\tp99\ttaskapi p50\tp99")
	for _, n := range connections {
		if err := p.compare(ctx, o, table, connectionCount(n), n); err != nil {
			return err
		}
	}
	differing := differ(p.ours.requests[0])
	p.bare.requests, p.ours.requests = differing, differing
	return p.compare(ctx, o, table, "8, no two heads alike", 8)
}

func connectionCount(n int) string { return fmt.Sprintf("%d connection(s)", n) }

// compare prints a row: how both servers answer on so many connections.
func (p *pair) compare(ctx context.Context, o options, table io.Writer, name string, connections int) error {
	var floors, agents []load.Result
	for range o.rounds {
		a, err := drive(ctx, p.bare, connections, 0, o)
		if err != nil {
			return fmt.Errorf("the floor, %s: %w", name, err)
		}
		b, err := drive(ctx, p.ours, connections, 0, o)
		if err != nil {
			return fmt.Errorf("taskapi, %s: %w", name, err)
		}
		floors, agents = append(floors, a), append(agents, b)
	}
	bare, ours := speedOf(floors), speedOf(agents)
	fmt.Fprintf(table, "%s\t%.0f\t%.0f\t%v\t%s\t%s\t%v\t%s\t%s\t%s\t%s\n", name, bare.rate, ours.rate,
		ratioOf(collect(agents, load.Result.Rate), collect(floors, load.Result.Rate)), micros(bare.cpu), micros(ours.cpu),
		ratioOf(collect(agents, cpuOf), collect(floors, cpuOf)),
		micros(bare.p50), micros(bare.p99), micros(ours.p50), micros(ours.p99))
	return nil
}

// differ returns so many variants of a request, by a header, that none of them comes again soon.
func differ(request []byte) (variants [][]byte) {
	head := bytes.TrimSuffix(request, []byte("\r\n"))
	for i := range 20_000 {
		variants = append(variants, fmt.Appendf(nil, "%sX-Request-Id: %d\r\n\r\n", head, i))
	}
	return variants
}

// drive sends the target's requests for a round. Each connection rests for the pause between a reply and its next
// request.
func drive(ctx context.Context, t target, connections int, pause time.Duration, o options) (load.Result, error) {
	r, err := load.Run(ctx, load.Config{
		Socket: t.socket, Connections: connections, Requests: t.requests, Server: t.pid,
		Warmup: warmup, For: o.of(time.Second), Pause: pause,
	})
	if err == nil && r.Replies == 0 {
		err = fmt.Errorf("no reply on %s in %v s: give -seconds more", t.socket, o.seconds)
	}
	return r, err
}
