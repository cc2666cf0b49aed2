package main

import (
	"context"
	"encoding/json"
	"errors"
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

// A neighbourRow says what a task keeps while others, with good tokens too, ask as much as they can.
type neighbourRow struct {
	Alone, Beside speed
	P99           ratio // beside to alone
	Rate          ratio
	Busy          float64     // replies to the busy callers, a second
	Statuses      map[int]int // of those replies, over all rounds
}

// measureNeighbours drives a task's socket alone and beside busy callers on the sockets of other tasks, in turn.
func measureNeighbours(ctx context.Context, env *environment, o options) (_ *neighbourRow, err error) {
	a, err := env.allocation(env.path(".data"), callers(1+busyCallers))
	if err != nil {
		return nil, err
	}
	s, err := env.run(a)
	if err != nil {
		return nil, err
	}
	defer s.stopInto(&err)
	if err := s.allRun(ctx, 1+busyCallers); err != nil {
		return nil, err
	}
	var targets []target
	for i := range 1 + busyCallers {
		t, err := s.caller(i)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	row := &neighbourRow{Statuses: map[int]int{}}
	var alone, beside []load.Result
	var busy, seconds float64
	for range o.rounds {
		quiet, err := calm(ctx, targets[0], o)
		if err != nil {
			return nil, fmt.Errorf("the neighbour alone: %w", err)
		}
		result, floods, err := besideBusy(ctx, env, targets[0], targets[1:], o)
		if err != nil {
			return nil, fmt.Errorf("beside busy callers: %w", err)
		}
		alone, beside = append(alone, quiet), append(beside, result)
		for _, flood := range floods {
			for status, n := range flood.Statuses {
				row.Statuses[status] += n
			}
			busy += float64(flood.Replies)
		}
		seconds += floods[0].Elapsed.Seconds()
	}
	row.Alone, row.Beside = speedOf(alone), speedOf(beside)
	row.Rate = ratioOf(beside, alone, load.Result.Rate)
	row.P99 = ratioOf(beside, alone, func(r load.Result) float64 { return float64(r.Percentile(99)) })
	row.Busy = busy / seconds
	return row, nil
}

// besideBusy drives the neighbour while a process for each busy caller asks all it can.
func besideBusy(ctx context.Context, env *environment, neighbour target, busy []target, o options) (good load.Result, floods []load.Result, err error) {
	var running []*flooder
	for _, t := range busy {
		f, err := env.flood(t, busyConnections)
		if err != nil {
			return good, nil, errors.Join(err, endAll(running))
		}
		running = append(running, f)
	}
	for _, f := range running {
		err = errors.Join(err, f.begun(ctx))
	}
	if err == nil {
		good, err = calm(ctx, neighbour, o)
	}
	for _, f := range running {
		result, ended := f.end()
		floods, err = append(floods, result), errors.Join(err, ended)
	}
	return good, floods, err
}

// calm asks one request after the other, with a rest between them.
func calm(ctx context.Context, t target, o options) (load.Result, error) {
	return load.Run(ctx, load.Config{
		Socket: t.socket, Connections: 1, Requests: t.requests, Warmup: warmup, For: o.of(time.Second), Pause: neighbourPause,
	})
}

func endAll(running []*flooder) (err error) {
	for _, f := range running {
		_, ended := f.end()
		err = errors.Join(err, ended)
	}
	return err
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
	secrets := filepath.Join(s.dir, fmt.Sprintf("t%d", i), "secrets")
	token, err := os.ReadFile(filepath.Join(secrets, "nomad_token"))
	if err != nil {
		return target{}, err
	}
	t := target{socket: filepath.Join(secrets, "api.sock"), requests: [][]byte{get("/v1/allocation/"+s.allocID, strings.TrimSpace(string(token)))}}
	r, err := exchange(t.socket, t.requests[0])
	if err == nil && r.status != http.StatusOK {
		err = fmt.Errorf("status %d on %s", r.status, t.socket)
	}
	return t, err
}

// A flooder is a process that sends requests as fast as they are answered.
type flooder struct {
	*process
	ready string
}

// flood starts one on the target.
func (env *environment) flood(t target, connections int) (*flooder, error) {
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
	return &flooder{p, ready}, nil
}

// begun waits until it floods.
func (f *flooder) begun(ctx context.Context) error {
	return f.until(ctx, "the flood", startTime, time.Millisecond, func() bool {
		_, err := os.Stat(f.ready)
		return err == nil
	})
}

// end stops it, and returns what it was answered.
func (f *flooder) end() (result load.Result, err error) {
	if err = f.stop(); err == nil {
		err = f.err
	}
	if err == nil {
		err = json.Unmarshal(f.output.Bytes(), &result)
	}
	if err != nil {
		return result, fmt.Errorf("%w; the flood printed: %s", err, f.output.String())
	}
	return result, nil
}
