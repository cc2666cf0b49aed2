package main

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"
)

const rendersPerRound = 10

// renderPath is the variable that the template of renderBlock reads.
const renderPath = "nomad/jobs/bench"

// renderBlock is a template; it shows the variable's value, and nothing else.
const renderBlock = `
      template {
        destination = "local/value"
        change_mode = "noop"
        data        = "{{ with nomadVar \"` + renderPath + `\" }}{{ .value }}{{ end }}"
      }
`

// renders measures the time from the answer to a write of a variable until the file that shows it is there. Taskapi
// renders at most five times in a second, so the writes have pauses between them.
func (env *environment) renders(ctx context.Context, _ options) (_ []sample, err error) {
	s, err := env.agent(env.path(".data"), sleepers(1, renderBlock))
	if err != nil {
		return nil, err
	}
	defer s.stopInto(&err)
	if _, err := s.answersOperator(ctx); err != nil {
		return nil, err
	}
	sdk, err := s.operator()
	if err != nil {
		return nil, err
	}
	defer sdk.Close()
	var all []time.Duration
	for i := range rendersPerRound + 1 {
		value := strconv.Itoa(i)
		if _, _, err := sdk.Variables().Update(&api.Variable{Path: renderPath, Items: api.VariableItems{"value": value}},
			nil); err != nil {
			return nil, err
		}
		written := time.Now()
		err := s.until(ctx, "the file", startTime, pollInterval, func() bool {
			text, err := os.ReadFile(filepath.Join(s.dir, "t0", "local", "value"))
			return err == nil && string(text) == value
		})
		if err != nil {
			return nil, err
		}
		all = append(all, time.Since(written))
		time.Sleep(renderPause)
	}
	return []sample{timeSample("a template's file after a variable", median(all[1:]))}, nil // the first starts the task
}

// renderPause is longer than taskapi waits between two renderings.
const renderPause = 300 * time.Millisecond
