package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"taskapi/internal/load"
)

// The good connections of the attack, and the hostile ones beside them.
const (
	goodConnections    = 2
	hostileConnections = 8
)

// attacked returns the task of a taskapi that trusts the attack's issuer.
func (env *environment) attacked(ctx context.Context) (target, error) {
	if env.hostile != nil {
		return env.ours(ctx)
	}
	issuer, keys := newIssuer(), env.path(".jwks")
	if err := os.WriteFile(keys, issuer.jwks(), 0o644); err != nil {
		return target{}, err
	}
	if _, err := env.shared(ctx, 1, "-o", "identity.jwks="+keys); err != nil {
		return target{}, err
	}
	t, err := env.ours(ctx)
	if err == nil {
		env.hostile, err = issuer.hostile(t.token, allocationPath(env.group.allocID))
	}
	return t, err
}

// attack drives good connections beside a flood of bad tokens. The floor refuses nobody: what the good connections lose
// there, they lose because the machine is busy.
func (env *environment) attack(ctx context.Context, o options, t target) ([]sample, error) {
	floods := []flood{{t.socket, env.hostile, hostileConnections}}
	return env.beside(ctx, floods, func() (load.Result, error) { return drive(ctx, t, goodConnections, 0, o) })
}

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
	var floods []flood
	for i := range 1 + busyCallers {
		t, err := s.target(i)
		if err != nil {
			return nil, err
		}
		targets, floods = append(targets, t), append(floods, flood{t.socket, t.requests, busyConnections})
	}
	return env.beside(ctx, floods[1:], func() (load.Result, error) { return drive(ctx, targets[0], 1, neighbourPause, o) })
}

// beside drives good connections alone and beside floods.
func (env *environment) beside(ctx context.Context, floods []flood, good func() (load.Result, error)) ([]sample,
	error) {
	alone, err := good()
	if err != nil {
		return nil, fmt.Errorf("the good connections alone: %w", err)
	}
	beside, flooded, err := env.flooding(ctx, floods, good)
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

// A flood is requests that are sent to a socket as fast as they are answered.
type flood struct {
	Socket      string
	Requests    [][]byte
	Connections int
}

// flooding drives the good connections while a process floods.
func (env *environment) flooding(ctx context.Context, floods []flood, good func() (load.Result, error)) (
	result load.Result, flooded []load.Result, err error) {
	text, err := json.Marshal(floods)
	if err != nil {
		return result, nil, err
	}
	file, ready := env.path(".floods"), env.path(".ready")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return result, nil, err
	}
	p, err := env.start(env.self, "role-flood", file, ready)
	if err != nil {
		return result, nil, err
	}
	if err = p.until(ctx, "the flood", time.Millisecond, func() bool {
		_, err := os.Stat(ready)
		return err == nil
	}); err == nil {
		result, err = good()
	}
	if p.stopInto(&err); err == nil {
		err = p.err
	}
	if err == nil {
		err = json.Unmarshal(p.output.Bytes(), &flooded)
	}
	if err != nil {
		err = fmt.Errorf("%w; the flood printed: %s", err, &p.output)
	}
	return result, flooded, err
}

// floodLength bounds a flood whose end was missed.
const floodLength = 5 * time.Minute

// floodRole floods until it is stopped, and prints a load.Result for each flood. Its arguments are the file of floods,
// and a file to make when it begins.
func floodRole(ctx context.Context, args []string) error {
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	var floods []flood
	if err := json.Unmarshal(text, &floods); err != nil {
		return err
	}
	if err := os.WriteFile(args[1], nil, 0o644); err != nil {
		return err
	}
	results := make([]load.Result, len(floods))
	var running errgroup.Group
	for i, f := range floods {
		running.Go(func() (err error) {
			results[i], err = load.Run(ctx, load.Config{
				Socket: f.Socket, Connections: f.Connections, Requests: f.Requests, For: floodLength, Hostile: true,
			})
			results[i].Latencies = nil
			return err
		})
	}
	if err := running.Wait(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(results)
}
