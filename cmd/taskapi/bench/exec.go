package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

const trueProgram = "/bin/true"

// execsPerRound is how often each way is measured in a round.
const execsPerRound = 20

// execWays are to run a program in a task over the operator's socket and by taskapi exec, and without taskapi: started
// by this program, and by nsenter in this program's own namespaces, where nsenter is allowed to.
func (env *environment) execWays() []way {
	command := func(args ...string) func(context.Context, options) ([]sample, error) {
		return func(ctx context.Context, _ options) ([]sample, error) {
			return timeExecs(func() error { return exec.CommandContext(ctx, args[0], args[1:]...).Run() })
		}
	}
	ways := []way{
		{"over the socket", func(ctx context.Context, _ options) ([]sample, error) {
			s, err := env.shared(ctx, 1)
			if err != nil {
				return nil, err
			}
			sdk, err := s.operator()
			if err != nil {
				return nil, err
			}
			defer sdk.Close()
			return timeExecs(func() error { return execOnce(ctx, sdk, s.allocID) })
		}},
		{"taskapi exec", func(ctx context.Context, o options) ([]sample, error) {
			s, err := env.shared(ctx, 1)
			if err != nil {
				return nil, err
			}
			dataDir := filepath.Dir(filepath.Dir(s.dir))
			return command(env.binary, "exec", "--data-dir", dataDir, "--", trueProgram)(ctx, o)
		}},
		{"fork and exec", command(trueProgram)},
	}
	nsenter := []string{"nsenter", "--target", strconv.Itoa(os.Getpid()), "--mount", "--uts", "--ipc", "--net", "--pid",
		trueProgram}
	if exec.Command(nsenter[0], nsenter[1:]...).Run() == nil {
		ways = append(ways, way{"nsenter", command(nsenter...)})
	}
	return ways
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
