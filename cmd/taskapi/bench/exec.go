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

// trueProgram is what is run.
const trueProgram = "/bin/true"

// execsPerRound is how often each way is measured in a round.
const execsPerRound = 20

// execWays are to run a program in a task over the operator's socket and by taskapi exec, and without taskapi: started
// by this program, and by nsenter in this program's own namespaces, where nsenter is allowed to.
func (env *environment) execWays() []way {
	inTask := func(run func(ctx context.Context, s *agent) error) func(context.Context, options) ([]sample, error) {
		return func(ctx context.Context, _ options) ([]sample, error) {
			s, err := env.shared(ctx, 1)
			if err != nil {
				return nil, err
			}
			return timeExecs(func() error { return run(ctx, s) })
		}
	}
	command := func(args ...string) func(context.Context, options) ([]sample, error) {
		return func(ctx context.Context, _ options) ([]sample, error) {
			return timeExecs(func() error { return exec.CommandContext(ctx, args[0], args[1:]...).Run() })
		}
	}
	ways := []way{
		{"over the socket", inTask(func(ctx context.Context, s *agent) error { return s.execOnce(ctx) })},
		{"taskapi exec", inTask(func(ctx context.Context, s *agent) error {
			dataDir := filepath.Dir(filepath.Dir(s.dir))
			return exec.CommandContext(ctx, env.binary, "exec", "--data-dir", dataDir, "--", trueProgram).Run()
		})},
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

// execOnce runs the program in the task, and reads its exit code.
func (s *agent) execOnce(ctx context.Context) error {
	sdk, err := s.operator()
	if err != nil {
		return err
	}
	defer sdk.Close()
	alloc := &api.Allocation{ID: s.allocID, NodeID: "-"} // the SDK tries the node first; there is none of that name
	code, err := sdk.Allocations().Exec(ctx, alloc, "t0", false, []string{trueProgram}, strings.NewReader(""), io.Discard,
		io.Discard, nil, nil)
	if err == nil && code != 0 {
		err = fmt.Errorf("%s ended with %d", trueProgram, code)
	}
	return err
}
