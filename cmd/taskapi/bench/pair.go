package main

import (
	"context"
	"errors"
)

// A pair is taskapi and a floor that gives the same reply to the same request.
type pair struct {
	agent *agent
	floor *floor
	ours  target
	bare  target
}

// pair starts taskapi with the flags, and a floor beside it once its checks have succeeded.
func (env *environment) pair(ctx context.Context, flags ...string) (*pair, error) {
	s, err := env.agent(env.path(".data"), flags, "role-task")
	if err != nil {
		return nil, err
	}
	p := &pair{agent: s}
	if err := p.begin(ctx, env); err != nil {
		p.stopInto(&err)
		return nil, err
	}
	return p, nil
}

func (p *pair) begin(ctx context.Context, env *environment) error {
	ours, answer, err := p.agent.target(ctx)
	if err != nil {
		return err
	}
	if p.floor, err = env.floor(answer); err != nil {
		return err
	}
	p.ours, p.bare = ours, target{socket: p.floor.socket, requests: ours.requests}
	_, err = p.floor.answers(ctx, ours.requests[0])
	return err
}

// stopInto ends both. A server that doesn't end makes a measurement fail that went well until then.
func (p *pair) stopInto(err *error) {
	*err = errors.Join(*err, p.agent.stop())
	if p.floor != nil {
		*err = errors.Join(*err, p.floor.stop())
	}
}
