package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/load"
	"taskapi/internal/proc"
	"taskapi/internal/slice"
)

// crowdJob is a job of one simulated task, with a service.
var crowdJob = fmt.Sprintf(jobFile, `
    network {
      port "http" {}
    }
    service {
      name     = "bench"
      provider = "nomad"
      port     = "http"
    }
`+fmt.Sprintf(taskBlock, 0, identityBlock, "/bin/sleep", `"infinity"`))

const (
	// restWindow is how long a process must use less than restShare of a processor to be at rest.
	restWindow = time.Second
	restShare  = 0.02
	// settleTime is how long a crowd may take to be at rest, and settleTimeEach is added for each allocation.
	settleTime     = time.Minute
	settleTimeEach = 300 * time.Millisecond
	// churnEvery is the time between two restarts of allocations, each of which registers its service again.
	churnEvery = 20 * time.Millisecond
)

type crowd struct {
	*process
	members []*agent
}

// crowd starts a process with many allocations, and returns when all of them run and the process is at rest.
func (env *environment) crowd(ctx context.Context, allocations int) (*crowd, error) {
	program, err := env.simulator(ctx)
	if err != nil {
		return nil, err
	}
	dataDir, file := env.path(".data"), env.path(".nomad.hcl")
	if err := os.WriteFile(file, []byte(crowdJob), 0o644); err != nil {
		return nil, err
	}
	p, err := start(program, "-data-dir", dataDir, "-allocations", strconv.Itoa(allocations), file)
	if err != nil {
		return nil, err
	}
	c := &crowd{process: p}
	limit := settleTime + time.Duration(allocations)*settleTimeEach
	err = p.until(ctx, "all allocations to run", limit, restWindow, func() bool {
		sockets, _ := filepath.Glob(filepath.Join(dataDir, "allocs", "*", "t0", "secrets", "api.sock"))
		return len(sockets) == allocations
	})
	if err == nil {
		used := time.Duration(0)
		err = p.until(ctx, "the process to rest", limit, restWindow, func() bool {
			before := used
			used = load.CPUTime(p.cmd.Process.Pid)
			return (used - before).Seconds() < restShare*restWindow.Seconds()
		})
	}
	if err != nil {
		p.stopInto(&err)
		return nil, err
	}
	dirs, err := filepath.Glob(filepath.Join(dataDir, "allocs", "*"))
	c.members = slice.Map(dirs, func(dir string) *agent { return &agent{p, filepath.Base(dir), dir} })
	return c, err
}

// churn restarts all allocations but the first, one after the other, until ctx ends.
func (c *crowd) churn(ctx context.Context) error {
	tick := time.NewTicker(churnEvery)
	defer tick.Stop()
	for i := 0; len(c.members) > 1; i++ {
		s := c.members[1+i%(len(c.members)-1)]
		sdk, err := s.operator()
		if err != nil {
			return err
		}
		_, err = sdk.Raw().Write("/v1/client/allocation/"+s.allocID+"/restart", struct{}{}, nil,
			(&api.WriteOptions{}).WithContext(ctx))
		sdk.Close()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("restart an allocation: %w", err)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	return nil
}

// answers drives the socket of the first allocation, while the others register services.
func (c *crowd) answers(ctx context.Context, o options) (result load.Result, err error) {
	t, err := c.members[0].target(0, "/v1/allocation/"+c.members[0].allocID)
	if err != nil {
		return result, err
	}
	t.pid = c.cmd.Process.Pid
	churning, stop := context.WithCancel(ctx)
	var others sync.WaitGroup
	var failed error
	others.Go(func() { failed = c.churn(churning) })
	result, err = drive(ctx, t, 8, 0, o)
	stop()
	others.Wait()
	if err == nil {
		err = failed
	}
	return result, err
}

func (env *environment) many(ctx context.Context, o options) ([]sample, error) {
	return env.scale(ctx, o, o.crowd)
}
func (env *environment) one(ctx context.Context, o options) ([]sample, error) {
	return env.scale(ctx, o, 1)
}

// scale measures a process with many allocations: its start, its memory at rest, and what it answers for one of the
// allocations while the others register services.
func (env *environment) scale(ctx context.Context, o options, allocations int) (_ []sample, err error) {
	c, err := env.crowd(ctx, allocations)
	if err != nil {
		return nil, err
	}
	defer c.stopInto(&err)
	pid, n := c.cmd.Process.Pid, float64(allocations)
	used, rss := load.CPUTime(pid), proc.Bytes(proc.Value(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Rss"))
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return nil, err
	}
	r, err := c.answers(ctx, o)
	return []sample{
		timeSample("CPU until it rests, for each", used/time.Duration(allocations)),
		{"RSS, for each", func(bytes float64) string { return fmt.Sprintf("%.0f kB", bytes/1e3) }, float64(rss) / n},
		{"open files, for each", func(files float64) string { return fmt.Sprintf("%.1f", files) }, float64(len(files)) / n},
		answerSample("an answer while others register", r), timeSample("its CPU", r.CPU),
	}, err
}
