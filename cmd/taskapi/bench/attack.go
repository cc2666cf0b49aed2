package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"taskapi/cmd/taskapi/bench/internal/load"
)

// The good connections, and the hostile ones beside them.
const (
	goodConnections    = 2
	hostileConnections = 8
)

// floodLength bounds a flood whose end was missed.
const floodLength = 5 * time.Minute

// An attackRow says what the good connections keep under attack.
type attackRow struct {
	Server          string
	Alone, Attacked speed
	Rate            ratio       // attacked to alone
	P99             ratio       // attacked to alone
	Hostile         float64     // replies to hostile connections, a second
	Statuses        map[int]int // of those replies, over all rounds
}

// measureAttack also puts the same bytes to the floor, which refuses nobody: what is left there is the machine's doing.
func measureAttack(ctx context.Context, env *environment, o options) (rows []attackRow, err error) {
	issuer, err := newIssuer()
	if err != nil {
		return nil, err
	}
	trust, err := env.trust(ctx, issuer)
	if err != nil {
		return nil, err
	}
	p, err := env.pair(ctx, trust...)
	if err != nil {
		return nil, err
	}
	defer p.stopInto(&err)
	requests, err := issuer.flood(p.agent)
	if err != nil {
		return nil, err
	}
	floorRow, err := attack(ctx, env, "floor", p.bare, requests, o)
	if err != nil {
		return nil, err
	}
	oursRow, err := attack(ctx, env, "taskapi", p.ours, requests, o)
	return []attackRow{floorRow, oursRow}, err
}

// flood makes the requests of a flood with bad tokens.
func (i *issuer) flood(s *agent) ([][]byte, error) {
	token, err := os.ReadFile(s.taskToken())
	if err != nil {
		return nil, err
	}
	return i.hostile(string(token), s.checksPath())
}

// trust gives the flags that have taskapi trust the issuer, and none when it knows no such flag: tokens for unknown allocations
// are then refused for their key already.
func (env *environment) trust(ctx context.Context, i *issuer) ([]string, error) {
	help, err := exec.CommandContext(ctx, env.binary, "run", "--help").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("taskapi run --help: %w: %s", err, help)
	}
	if !bytes.Contains(help, []byte("--jwks")) {
		return nil, nil
	}
	keys := env.path(".jwks")
	return []string{"-jwks", keys}, os.WriteFile(keys, i.jwks(), 0o644)
}

// attack drives the good connections alone and beside a flood, in turn.
func attack(ctx context.Context, env *environment, name string, t target, requests [][]byte, o options) (attackRow, error) {
	row := attackRow{Server: name, Statuses: map[int]int{}}
	var alone, attacked []load.Result
	var hostile, seconds float64
	for range o.rounds {
		quiet, err := drive(ctx, t, goodConnections, o)
		if err != nil {
			return row, fmt.Errorf("good connections alone: %w", err)
		}
		result, flood, err := beside(ctx, env, t, requests, o)
		if err != nil {
			return row, fmt.Errorf("under attack: %w", err)
		}
		alone, attacked = append(alone, quiet), append(attacked, result)
		for status, n := range flood.Statuses {
			row.Statuses[status] += n
		}
		hostile, seconds = hostile+float64(flood.Replies), seconds+flood.Elapsed.Seconds()
	}
	row.Alone, row.Attacked = speedOf(alone), speedOf(attacked)
	row.Rate = ratioOf(attacked, alone, load.Result.Rate)
	row.P99 = ratioOf(attacked, alone, func(r load.Result) float64 { return float64(r.Percentile(99)) })
	row.Hostile = hostile / seconds
	return row, nil
}

// beside drives the good connections while another process floods the same socket.
func beside(ctx context.Context, env *environment, t target, requests [][]byte, o options) (good, flood load.Result, err error) {
	f, err := env.flood(target{t.socket, requests}, hostileConnections)
	if err != nil {
		return good, flood, err
	}
	if err = f.begun(ctx); err == nil {
		good, err = drive(ctx, t, goodConnections, o)
	}
	flood, ended := f.end()
	return good, flood, errors.Join(err, ended)
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
