package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// trueProgram is what is run.
const trueProgram = "/bin/true"

// execsPerRound is how often each way is measured in a round.
const execsPerRound = 20

// measureExec runs a program in a task over the operator's socket and by taskapi exec, and without taskapi: started
// by this program, and by nsenter in this program's own namespaces, where nsenter is allowed to.
func measureExec(ctx context.Context, env *environment, o options, table io.Writer) (err error) {
	dataDir := env.path(".data")
	s, err := env.group(ctx, dataDir, 1)
	if err != nil {
		return err
	}
	defer s.stopInto(&err)
	command := func(args ...string) func() error {
		return func() error { return exec.CommandContext(ctx, args[0], args[1:]...).Run() }
	}
	nsenter := []string{"nsenter", "--target", strconv.Itoa(os.Getpid()), "--mount", "--uts", "--ipc", "--net", "--pid"}
	ways := []struct {
		name string
		run  func() error
	}{
		{"in a task, over the socket", func() error { return s.execOnce(ctx) }},
		{"in a task, by taskapi exec", command(env.binary, "exec", "--data-dir", dataDir, "--", trueProgram)},
		{"by fork and exec", command(trueProgram)},
		{"by nsenter", command(append(nsenter, trueProgram)...)},
	}
	if ways[3].run() != nil {
		ways = ways[:3]
	}
	times := make([][]time.Duration, len(ways))
	for range execsPerRound * o.rounds {
		for i, way := range ways {
			began := time.Now()
			if err := way.run(); err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			times[i] = append(times[i], time.Since(began))
		}
	}
	fmt.Fprintln(table, "run /bin/true\tmedian (spread)\tthe first over this")
	for i, way := range ways {
		fmt.Fprintf(table, "%s\t%s\t%v\n", way.name, spread(times[i]), ratioOf(times[0], times[i]))
	}
	return nil
}

// execOnce runs the program in the task, and reads its exit code.
func (s *agent) execOnce(ctx context.Context) error {
	sdk, err := s.operator()
	if err != nil {
		return err
	}
	alloc := &api.Allocation{ID: s.allocID, NodeID: "-"} // the SDK tries the node first; there is none of that name
	code, err := sdk.Allocations().Exec(ctx, alloc, "t0", false, []string{trueProgram}, strings.NewReader(""), io.Discard,
		io.Discard, nil, nil)
	if err == nil && code != 0 {
		err = fmt.Errorf("%s ended with %d", trueProgram, code)
	}
	return err
}
