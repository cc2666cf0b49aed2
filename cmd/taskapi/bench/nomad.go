package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/nomad/api"
)

// A nomad is a Nomad agent in its mode for development, which keeps the server's state in memory, with at most one
// allocation.
type nomad struct {
	agent
	sdk      *api.Client
	answered time.Duration // from exec to its first 200
}

// nomadConfig lets the agent run raw_exec, on ports of its own. Nothing asks for clouds, which takes seconds where
// there are none. The allocations' directory and the ports go in.
const nomadConfig = `
client {
  alloc_dir = %q
  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"
  }
}
ports {
  http = %d
  rpc  = %d
  serf = %d
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
`

// besideNomad adds a Nomad agent to the ways of a measurement, if -nomad names its program.
func (env *environment) besideNomad(ways []way, take func(context.Context, options) ([]sample, error)) []way {
	if env.nomadBinary == "" {
		return ways
	}
	return append(ways, way{"nomad", take})
}

// nomad starts an agent with an allocation of the job, and returns when its tasks run.
func (env *environment) nomad(ctx context.Context, text string) (*nomad, error) {
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	n := &nomad{}
	if n.sdk, err = api.NewClient(&api.Config{Address: fmt.Sprintf("http://127.0.0.1:%d", ports[0])}); err != nil {
		return nil, err
	}
	allocs, file := env.path(""), env.path(".hcl")
	config := fmt.Sprintf(nomadConfig, append([]any{allocs}, ports...)...)
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return nil, err
	}
	// The agent leaves files in its temporary directory.
	n.process, err = env.start("/usr/bin/env", "TMPDIR="+env.dir, env.nomadBinary, "agent", "-dev", "-log-level", "error",
		"-config", file)
	if err != nil {
		return nil, err
	}
	wait := func(what string, try func() bool) {
		if err == nil {
			err = n.until(ctx, what, pollInterval, try)
		}
	}
	wait("Nomad's first 200", func() bool {
		_, err := n.sdk.Agent().Self()
		return err == nil
	})
	n.answered = time.Since(n.started)
	wait("Nomad's node", func() bool {
		nodes, _, err := n.sdk.Nodes().List(nil)
		return err == nil && len(nodes) == 1 && nodes[0].Status == api.NodeStatusReady
	})
	var registered *api.Job
	if err == nil {
		registered, err = n.sdk.Jobs().ParseHCL(text, true)
	}
	if err == nil {
		_, _, err = n.sdk.Jobs().Register(registered, nil)
	}
	wait("Nomad's tasks", func() bool {
		list, _, err := n.sdk.Jobs().Allocations(*registered.ID, false, nil)
		if err != nil || len(list) != 1 || list[0].ClientStatus != api.AllocClientStatusRunning {
			return false
		}
		n.allocID, n.dir = list[0].ID, filepath.Join(allocs, list[0].ID)
		return true
	})
	return n, err
}

// freePorts returns ports that are free on all addresses.
func freePorts(count int) (ports []any, err error) {
	for range count {
		l, err := net.Listen("tcp", ":0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // all are taken at once, so that they differ
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// nomadShared returns the agent that the rounds of a measurement share, with a task that sleeps.
func (env *environment) nomadShared(ctx context.Context) (_ *nomad, err error) {
	if env.peer == nil {
		env.peer, err = env.nomad(ctx, sleepers(1))
	}
	return env.peer, err
}

// nomadAnswers sends taskapi's request to the socket of a task of Nomad's.
func (env *environment) nomadAnswers(ctx context.Context, o options) ([]sample, error) {
	n, err := env.nomadShared(ctx)
	if err != nil {
		return nil, err
	}
	t, err := n.target(0)
	if err != nil {
		return nil, err
	}
	return answers(ctx, o, t)
}

// nomadStarts measures from exec of the agent to its first 200, and to a task's.
func (env *environment) nomadStarts(ctx context.Context, _ options) (_ []sample, err error) {
	file := env.path(".first")
	n, err := env.nomad(ctx, job(1, env.self, "role-first", file))
	if err != nil {
		return nil, err
	}
	defer n.stopInto(&err)
	first, err := n.firstAnswer(ctx, file)
	return []sample{timeSample(firstAnswerFigure, n.answered), timeSample(taskAnswerFigure, first)}, err
}

// nomadMemory reads the memory of the agent and the executors of its tasks after a rest.
func (env *environment) nomadMemory(ctx context.Context, o options) (_ []sample, err error) {
	n, err := env.nomad(ctx, sleepers(restingTasks))
	if err != nil {
		return nil, err
	}
	defer n.stopInto(&err)
	return atRest(ctx, o, processesWith("exe", env.nomadBinary)...)
}

func (env *environment) nomadExecs(ctx context.Context, _ options) ([]sample, error) {
	n, err := env.nomadShared(ctx)
	if err != nil {
		return nil, err
	}
	return timeExecs(func() error { return execOnce(ctx, n.sdk, n.allocID) })
}
