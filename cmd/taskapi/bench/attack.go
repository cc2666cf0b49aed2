package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"taskapi/cmd/taskapi/bench/internal/load"
)

// The good connections, and the hostile ones beside them.
const (
	goodConnections    = 2
	hostileConnections = 8
)

// measureAttack sends the same flood to the floor, which refuses nobody: what the good connections lose there, they
// lose because the machine is busy.
func measureAttack(ctx context.Context, env *environment, o options, table io.Writer) (err error) {
	issuer := newIssuer()
	keys := env.path(".jwks")
	if err := os.WriteFile(keys, issuer.jwks(), 0o644); err != nil {
		return err
	}
	p, err := env.pair(ctx, "-jwks", keys)
	if err != nil {
		return err
	}
	defer p.stopInto(&err)
	token, err := p.agent.taskToken(0)
	if err != nil {
		return err
	}
	requests, err := issuer.hostile(token, checksPath(p.agent.allocID))
	if err != nil {
		return err
	}
	fmt.Fprintf(table, besideTitle, "2 good beside 8 hostile", "hostile")
	for _, server := range []struct {
		name   string
		target target
	}{{"floor", p.bare}, {"taskapi", p.ours}} {
		floods := []target{{socket: server.target.socket, requests: requests}}
		good := func() (load.Result, error) { return drive(ctx, server.target, goodConnections, 0, o) }
		if err := env.beside(ctx, o, table, server.name, floods, hostileConnections, good); err != nil {
			return err
		}
	}
	return nil
}
