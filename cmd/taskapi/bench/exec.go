package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

const trueProgram = "/bin/true"

// execsPerRound is how often each way is measured in a round.
const execsPerRound = 20

// execWays are to run a program in a task over the operator's socket and by taskapi exec, and without taskapi.
func (env *environment) execWays() []way {
	inTask := func(run func(context.Context, *agent, *api.Client) error) func(context.Context, options) ([]sample, error) {
		return func(ctx context.Context, _ options) ([]sample, error) {
			s, err := env.shared(ctx, 1)
			if err != nil {
				return nil, err
			}
			sdk, err := s.operator()
			if err != nil {
				return nil, err
			}
			defer sdk.Close()
			return timeExecs(func() error { return run(ctx, s, sdk) })
		}
	}
	return []way{
		{"over the socket", inTask(func(ctx context.Context, s *agent, sdk *api.Client) error {
			return execOnce(ctx, sdk, s.allocID)
		})},
		{"taskapi exec", inTask(func(ctx context.Context, s *agent, _ *api.Client) error {
			dataDir := filepath.Dir(filepath.Dir(s.dir))
			return exec.CommandContext(ctx, env.binary, "exec", "--data-dir", dataDir, "--", trueProgram).Run()
		})},
		{"fork and exec", func(ctx context.Context, _ options) ([]sample, error) {
			return timeExecs(func() error { return exec.CommandContext(ctx, trueProgram).Run() })
		}},
	}
}

func timeExecs(run func() error) ([]sample, error) {
	var all []time.Duration
	for range execsPerRound {
		began := time.Now()
		if err := run(); err != nil {
			return nil, err
		}
		all = append(all, time.Since(began))
	}
	return []sample{timeSample("true", median(all))}, nil
}

// execOnce runs the program in the allocation's first task, and reads its exit code.
func execOnce(ctx context.Context, sdk *api.Client, allocID string) error {
	alloc := &api.Allocation{ID: allocID, NodeID: "-"} // the SDK tries the node first; there is none of that name
	code, err := sdk.Allocations().Exec(ctx, alloc, "t0", false, []string{trueProgram}, strings.NewReader(""), io.Discard,
		io.Discard, nil, nil)
	if err == nil && code != 0 {
		err = fmt.Errorf("%s ended with %d", trueProgram, code)
	}
	return err
}
