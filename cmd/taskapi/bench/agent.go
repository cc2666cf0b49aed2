package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"taskapi/internal/slice"

	"github.com/hashicorp/nomad/api"
)

// startTime is how long taskapi may take until what a measurement needs is there.
const startTime = 30 * time.Second

// jobFile is a job of one group; the tasks go in.
const jobFile = `
job "bench" {
  group "g" {
    restart {
      attempts = 0
      mode     = "fail"
    }
%s
  }
}
`

// taskBlock is a task, whose token the benchmark and the task itself use; its number, its command and arguments go in.
const taskBlock = `
    task "t%d" {
      driver = "raw_exec"
      identity {
        env  = true
        file = true
      }
      config {
        command = %q
        args    = [%s]
      }
    }
`

// job returns a job whose tasks, t0 and so on, run the program with the arguments.
func job(tasks int, program string, args ...string) string {
	quoted := strings.Join(slice.Map(args, strconv.Quote), ", ")
	var blocks strings.Builder
	for i := range tasks {
		fmt.Fprintf(&blocks, taskBlock, i, program, quoted)
	}
	return fmt.Sprintf(jobFile, blocks.String())
}

// sleepers returns a job whose tasks do nothing.
func sleepers(tasks int) string { return job(tasks, "/bin/sleep", "infinity") }

type agent struct {
	*process
	allocID string
	dir     string // the allocation's directory
}

// agent starts taskapi with a new allocation of the job, and returns when the operator gets a 200, and how long that
// took from exec.
func (env *environment) agent(ctx context.Context, dataDir, text string, flags ...string) (*agent, time.Duration,
	error) {
	allocs, file := filepath.Join(dataDir, "allocs", "*"), env.path(".nomad.hcl")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, 0, err
	}
	before, _ := filepath.Glob(allocs)
	p, err := env.start(env.binary, append(append([]string{"run", "-data-dir", dataDir}, flags...), file)...)
	if err != nil {
		return nil, 0, err
	}
	s := &agent{process: p}
	err = s.until(ctx, "the operator's first 200", pollInterval, func() bool {
		if s.dir == "" {
			now, _ := filepath.Glob(allocs)
			if i := slices.IndexFunc(now, func(dir string) bool { return !slices.Contains(before, dir) }); i >= 0 {
				s.allocID, s.dir = filepath.Base(now[i]), now[i]
			}
		}
		_, err := s.allocation()
		return err == nil
	})
	return s, time.Since(p.started), err
}

// running starts taskapi with a job, and returns when all of its tasks run.
func (env *environment) running(ctx context.Context, text string, flags ...string) (*agent, error) {
	s, _, err := env.agent(ctx, env.path(".data"), text, flags...)
	if err != nil {
		return s, err
	}
	return s, s.until(ctx, "the tasks to run", 20*time.Millisecond, func() bool {
		alloc, err := s.allocation()
		if err != nil {
			return false
		}
		for _, task := range alloc.TaskStates {
			if task.State != "running" {
				return false
			}
		}
		return true
	})
}

// shared returns the taskapi that the rounds of a measurement share, with tasks that sleep. It is started with the
// flags.
func (env *environment) shared(ctx context.Context, tasks int, flags ...string) (_ *agent, err error) {
	if env.group == nil {
		env.group, err = env.running(ctx, sleepers(tasks), flags...)
	}
	return env.group, err
}

func (s *agent) operator() (*api.Client, error) {
	token, err := tokenIn(filepath.Join(s.dir, "operator.token"))
	if err != nil {
		return nil, err
	}
	return api.NewClient(&api.Config{Address: "unix://" + filepath.Join(s.dir, "operator.sock"), SecretID: token})
}

func (s *agent) allocation() (*api.Allocation, error) {
	sdk, err := s.operator()
	if err != nil {
		return nil, err
	}
	defer sdk.Close()
	alloc, _, err := sdk.Allocations().Info(s.allocID, nil)
	return alloc, err
}

func tokenIn(file string) (string, error) {
	token, err := os.ReadFile(file)
	return strings.TrimSpace(string(token)), err
}

// target returns the socket of the task with the number, and a request for its allocation, with its token.
func (s *agent) target(i int) (target, error) {
	secrets := filepath.Join(s.dir, fmt.Sprintf("t%d", i), "secrets")
	token, err := tokenIn(filepath.Join(secrets, "nomad_token"))
	return target{socket: filepath.Join(secrets, "api.sock"), token: token,
		requests: [][]byte{get(allocationPath(s.allocID), token)}, pid: s.cmd.Process.Pid}, err
}

func allocationPath(id string) string { return "/v1/allocation/" + id }
