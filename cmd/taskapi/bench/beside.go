package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"

	"taskapi/internal/load"
)

// floodLength bounds a flood whose end was missed.
const floodLength = 5 * time.Minute

// beside drives good connections alone and beside a flood of each target.
func (env *environment) beside(ctx context.Context, floods []target, connections int,
	good func() (load.Result, error)) ([]sample, error) {
	alone, err := good()
	if err != nil {
		return nil, fmt.Errorf("the good connections alone: %w", err)
	}
	beside, flooded, err := env.flooding(ctx, floods, connections, good)
	if err != nil {
		return nil, fmt.Errorf("beside the floods: %w", err)
	}
	replies, refused := 0, 0
	for _, flood := range flooded {
		replies += flood.Replies
		for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests} {
			refused += flood.Statuses[status]
		}
	}
	p99 := func(r load.Result) float64 { return float64(r.Percentile(99)) }
	return []sample{
		answerSample("good: an answer, alone", alone),
		answerSample("beside", beside),
		{"grown", times, alone.Rate() / beside.Rate()},
		{"good: p99, alone", duration, p99(alone)},
		{"p99, beside", duration, p99(beside)},
		{"p99, grown", times, p99(beside) / p99(alone)},
		{"the others: an answer", duration, float64(flooded[0].Elapsed) / float64(replies)},
		{"the others: not refused", percent, 1 - float64(refused)/float64(replies)},
	}, nil
}

// flooding drives the good connections while a process for each target floods it.
func (env *environment) flooding(ctx context.Context, targets []target, connections int,
	good func() (load.Result, error)) (result load.Result, floods []load.Result, err error) {
	var running []*process
	for _, t := range targets {
		p, failed := env.flood(ctx, t, connections)
		if p != nil {
			running = append(running, p)
		}
		if err = failed; err != nil {
			break
		}
	}
	if err == nil {
		result, err = good()
	}
	for _, p := range running {
		flood, ended := endFlood(p)
		floods, err = append(floods, flood), errors.Join(err, ended)
	}
	return result, floods, err
}

// flood starts a process that sends requests to the target as fast as they are answered, and waits until it does.
// The process is there with an error, too, once it has been started.
func (env *environment) flood(ctx context.Context, t target, connections int) (*process, error) {
	text, err := json.Marshal(t.requests)
	if err != nil {
		return nil, err
	}
	requests, ready := env.path(".requests"), env.path(".ready")
	if err := os.WriteFile(requests, text, 0o600); err != nil {
		return nil, err
	}
	p, err := start(env.self, "role-flood", t.socket, requests, ready, fmt.Sprint(connections))
	if err != nil {
		return nil, err
	}
	return p, p.until(ctx, "the flood", startTime, time.Millisecond, func() bool {
		_, err := os.Stat(ready)
		return err == nil
	})
}

// endFlood stops a flood, and returns what it was answered.
func endFlood(p *process) (result load.Result, err error) {
	if err = p.stop(); err == nil {
		err = p.err
	}
	if err == nil {
		err = json.Unmarshal(p.output.Bytes(), &result)
	}
	if err != nil {
		return result, fmt.Errorf("%w; the flood printed: %s", err, &p.output)
	}
	return result, nil
}

// floodRole floods until it is stopped, and prints its load.Result. Its arguments are the socket, the file of requests,
// a file to make when it begins, and how many connections it has.
func floodRole(ctx context.Context, args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("the flood takes a socket, requests, a file and a number of connections, not %q", args)
	}
	connections, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	text, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	var requests [][]byte
	if err := json.Unmarshal(text, &requests); err != nil {
		return err
	}
	if err := os.WriteFile(args[2], nil, 0o644); err != nil {
		return err
	}
	result, err := load.Run(ctx, load.Config{
		Socket: args[0], Connections: connections, Requests: requests, For: floodLength, Hostile: true,
	})
	if err != nil {
		return err
	}
	result.Latencies = nil
	return json.NewEncoder(os.Stdout).Encode(result)
}
