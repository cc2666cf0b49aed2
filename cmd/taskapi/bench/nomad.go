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
	sdk    *api.Client
	allocs string // the directory of allocations
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

// nomad starts an agent, and returns when it has answered. The agent is there with an error, too, once it has been
// started.
func (env *environment) nomad(ctx context.Context) (*nomad, error) {
	n := &nomad{allocs: env.path("")}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	file := env.path(".hcl")
	text := fmt.Sprintf(nomadConfig, append([]any{n.allocs}, ports...)...)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, err
	}
	if n.sdk, err = api.NewClient(&api.Config{Address: fmt.Sprintf("http://127.0.0.1:%d", ports[0])}); err != nil {
		return nil, err
	}
	// The agent leaves files in its temporary directory.
	n.process, err = start("/usr/bin/env", "TMPDIR="+env.dir, env.nomadBinary, "agent", "-dev", "-log-level", "error",
		"-config", file)
	if err != nil {
		return nil, err
	}
	return n, n.until(ctx, "Nomad's first 200", startTime, pollInterval, func() bool {
		_, err := n.sdk.Agent().Self()
		return err == nil
	})
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

// run registers the job, and waits until the tasks of its allocation run.
func (n *nomad) run(ctx context.Context, text string) error {
	job, err := n.sdk.Jobs().ParseHCL(text, true)
	if err != nil {
		return err
	}
	if err := n.until(ctx, "Nomad's node", startTime, pollInterval, func() bool {
		nodes, _, err := n.sdk.Nodes().List(nil)
		return err == nil && len(nodes) == 1 && nodes[0].Status == api.NodeStatusReady
	}); err != nil {
		return err
	}
	if _, _, err := n.sdk.Jobs().Register(job, nil); err != nil {
		return err
	}
	return n.until(ctx, "Nomad's tasks", startTime, pollInterval, func() bool {
		allocs, _, err := n.sdk.Jobs().Allocations(*job.ID, false, nil)
		if err != nil || len(allocs) != 1 || allocs[0].ClientStatus != api.AllocClientStatusRunning {
			return false
		}
		n.allocID, n.dir = allocs[0].ID, filepath.Join(n.allocs, allocs[0].ID)
		return true
	})
}

// withJob starts an agent with an allocation of the job. The agent is there with an error, too.
func (env *environment) withJob(ctx context.Context, job string) (*nomad, error) {
	n, err := env.nomad(ctx)
	if err != nil {
		return n, err
	}
	return n, n.run(ctx, job)
}

// nomadAnswers sends taskapi's request to the socket of a task of Nomad's.
func (env *environment) nomadAnswers(ctx context.Context, o options) ([]sample, error) {
	if env.peer == nil {
		n, err := env.withJob(ctx, server(env.self, "role-task"))
		if env.peer = n; err != nil {
			return nil, err
		}
	}
	n := env.peer
	var to target
	if err := n.until(ctx, "the checks to succeed", startTime, 20*time.Millisecond, func() bool {
		var answer reply
		var err error
		if to, err = n.target(0, checksPath(n.allocID)); err == nil {
			answer, err = exchange(to.socket, to.requests[0])
		}
		return err == nil && succeeded(answer.body)
	}); err != nil {
		return nil, err
	}
	to.pid = n.cmd.Process.Pid
	return answers(ctx, o, to)
}

// nomadStarts measures from exec of the agent to its first 200, and to a task's.
func (env *environment) nomadStarts(ctx context.Context, _ options) (_ []sample, err error) {
	file := env.path(".first")
	n, err := env.nomad(ctx)
	if n != nil {
		defer n.stopInto(&err)
	}
	if err != nil {
		return nil, err
	}
	operator := time.Since(n.started)
	if err := n.run(ctx, server(env.self, "role-first", file)); err != nil {
		return nil, err
	}
	main, first, err := n.firstAnswer(ctx, file)
	return []sample{
		timeSample(firstAnswerFigure, operator), timeSample(mainFigure, main), timeSample(taskAnswerFigure, first),
	}, err
}

// nomadMemory reads the memory of the agent and the executors of its tasks after a rest.
func (env *environment) nomadMemory(ctx context.Context, o options) (_ []sample, err error) {
	n, err := env.withJob(ctx, sleepers(restingTasks, identityBlock))
	if n != nil {
		defer n.stopInto(&err)
	}
	if err != nil {
		return nil, err
	}
	return atRest(ctx, o, processesWith("exe", env.nomadBinary)...)
}

func (env *environment) nomadExecs(ctx context.Context, _ options) ([]sample, error) {
	if env.peer == nil {
		n, err := env.withJob(ctx, sleepers(1, identityBlock))
		if env.peer = n; err != nil {
			return nil, err
		}
	}
	return timeExecs(func() error { return execOnce(ctx, env.peer.sdk, env.peer.allocID) })
}
