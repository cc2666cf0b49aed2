package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"

	"taskapi/cmd/taskapi/bench/internal/load"
)

// The good connections, and the hostile ones beside them.
const (
	goodConnections    = 2
	hostileConnections = 8
)

// measureAttack also puts the same bytes to the floor, which refuses nobody: what is left there is the machine's doing.
func measureAttack(ctx context.Context, env *environment, o options) (rows []besideRow, err error) {
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
	return []besideRow{floorRow, oursRow}, err
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

// attack drives the good connections alone and beside a flood of the same socket, in turn.
func attack(ctx context.Context, env *environment, name string, t target, requests [][]byte, o options) (besideRow, error) {
	return env.beside(ctx, o, name, []target{{t.socket, requests}}, hostileConnections, func() (load.Result, error) { return drive(ctx, t, goodConnections, o) })
}
