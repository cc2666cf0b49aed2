package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"taskapi/internal/load"
	"taskapi/internal/wake"
)

// Each of watchingTasks has templatesEach templates, each of which reads the job's variable and a service of its own.
const (
	watchingTasks = 5
	templatesEach = 100
)

// watchTime is how long the processes are measured, for each of -seconds.
const watchTime = 5 * time.Second

// watches measures the CPU time of taskapi and its keeper while nothing changes that the tasks' templates read; without
// templates if there are to be none.
func (env *environment) watches(each int) func(context.Context, options) ([]sample, error) {
	return func(ctx context.Context, o options) (_ []sample, err error) {
		var block strings.Builder
		for i := range each {
			fmt.Fprintf(&block, "template {\ndestination = \"local/%d\"\ndata = \"{{ nomadVarExists \\\"%s\\\" }}"+
				"{{ range nomadService \\\"s%d\\\" }}{{ .Port }}{{ end }}\"\n}\n", i, renderPath, i)
		}
		s, err := env.running(ctx, sleepers(watchingTasks, block.String()), watchingTasks)
		if err != nil {
			return nil, err
		}
		defer s.stopInto(&err)
		keeper, err := s.keeper(env)
		if err != nil {
			return nil, err
		}
		used := func() time.Duration { return load.CPUTime(s.cmd.Process.Pid) + load.CPUTime(keeper) }
		// The allocation becomes healthy ten seconds after its start, and then taskapi does its last work.
		if err := wake.Sleep(ctx, o.of(rest)); err != nil {
			return nil, err
		}
		before, begun := used(), time.Now()
		if err := wake.Sleep(ctx, o.of(watchTime)); err != nil {
			return nil, err
		}
		share := float64(used()-before) / float64(time.Since(begun))
		return []sample{{"CPU at rest, of a core", hundredths, share}}, nil
	}
}

func hundredths(n float64) string { return fmt.Sprintf("%.2f %%", 100*n) }
