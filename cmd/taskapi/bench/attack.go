package main

import (
	"context"
	"os"

	"taskapi/internal/load"
)

// The good connections, and the hostile ones beside them.
const (
	goodConnections    = 2
	hostileConnections = 8
)

func (env *environment) attack(ctx context.Context, o options) ([]sample, error) {
	p, err := env.attacked(ctx)
	if err != nil {
		return nil, err
	}
	return env.attackOn(ctx, o, p.ours)
}

// floorAttack sends the same flood to the floor, which refuses nobody: what the good connections lose there, they lose
// because the machine is busy.
func (env *environment) floorAttack(ctx context.Context, o options) ([]sample, error) {
	p, err := env.attacked(ctx)
	if err == nil {
		p, err = env.withFloor(ctx)
	}
	if err != nil {
		return nil, err
	}
	return env.attackOn(ctx, o, p.bare)
}

// attacked returns a taskapi that trusts the attack's issuer.
func (env *environment) attacked(ctx context.Context) (*pair, error) {
	if env.hostile != nil {
		return env.pair(ctx)
	}
	issuer, keys := newIssuer(), env.path(".jwks")
	if err := os.WriteFile(keys, issuer.jwks(), 0o644); err != nil {
		return nil, err
	}
	p, err := env.pair(ctx, "-o", "identity.jwks="+keys)
	if err != nil {
		return nil, err
	}
	token, err := p.agent.taskToken(0)
	if err != nil {
		return nil, err
	}
	env.hostile, err = issuer.hostile(token, checksPath(p.agent.allocID))
	return p, err
}

func (env *environment) attackOn(ctx context.Context, o options, t target) ([]sample, error) {
	floods := []target{{socket: t.socket, requests: env.hostile}}
	return env.beside(ctx, floods, hostileConnections, func() (load.Result, error) {
		return drive(ctx, t, goodConnections, 0, o)
	})
}
