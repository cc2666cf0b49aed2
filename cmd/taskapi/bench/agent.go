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

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"
)

// startTime is how long taskapi may take until what a measurement needs is there, and startTimeEach is added for
// each task.
const (
	startTime     = 30 * time.Second
	startTimeEach = 200 * time.Millisecond
)

// jobFile is a job of one group; the blocks of the group go in.
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

// serverBlocks run this program as the task "t0". Its two checks, once a second, are part of what an idle taskapi does.
const serverBlocks = `
    network {
      port "http" {}
    }
    service {
      name     = "bench"
      provider = "nomad"
      port     = "http"
      check {
        name     = "alive"
        type     = "http"
        path     = "/"
        interval = "1s"
        timeout  = "1s"
      }
      check {
        name     = "port"
        type     = "tcp"
        interval = "1s"
        timeout  = "1s"
      }
    }
`

// taskBlock is a task; its number, further blocks, its command and arguments go in.
const taskBlock = `
    task "t%d" {
      driver = "raw_exec"
      %s
      config {
        command = %q
        args    = [%s]
      }
    }
`

// identityBlock lets the benchmark, and the task, use the task's token.
const identityBlock = `
      identity {
        env  = true
        file = true
      }
`

// server returns a job whose one task is the program with the arguments.
func server(program string, args ...string) string {
	quoted := strings.Join(slice.Map(args, strconv.Quote), ", ")
	task := fmt.Sprintf(taskBlock, 0, identityBlock, program, quoted)
	return fmt.Sprintf(jobFile, serverBlocks+task)
}

// sleepers returns a job whose tasks do nothing; each has the further block.
func sleepers(tasks int, block string) string {
	var blocks strings.Builder
	for i := range tasks {
		fmt.Fprintf(&blocks, taskBlock, i, block, "/bin/sleep", `"infinity"`)
	}
	return fmt.Sprintf(jobFile, blocks.String())
}

type agent struct {
	*process
	allocID string
	dir     string // the allocation's directory
}

// runJob starts taskapi run with the job and the flags.
func (env *environment) runJob(dataDir, job string, flags ...string) (*process, error) {
	file := env.path(".nomad.hcl")
	if err := os.WriteFile(file, []byte(job), 0o644); err != nil {
		return nil, err
	}
	args := append([]string{"run", "-data-dir", dataDir}, flags...)
	return start(env.binary, append(args, file)...)
}

// agent starts taskapi with a new allocation of the job.
func (env *environment) agent(dataDir, job string, flags ...string) (*agent, error) {
	allocID := uuid.NewString()
	p, err := env.runJob(dataDir, job, append([]string{"-alloc-id", allocID}, flags...)...)
	if err != nil {
		return nil, err
	}
	return &agent{process: p, allocID: allocID, dir: filepath.Join(dataDir, "allocs", allocID)}, nil
}

// fresh starts taskapi as a user does, who gives no ID, and returns when the operator gets a 200.
func (env *environment) fresh(ctx context.Context, dataDir, job string) (s *agent, took time.Duration, err error) {
	allocs := filepath.Join(dataDir, "allocs")
	before, _ := os.ReadDir(allocs) // none before the first start
	p, err := env.runJob(dataDir, job)
	if err != nil {
		return nil, 0, err
	}
	s = &agent{process: p}
	err = s.until(ctx, "the operator's first 200", startTime, pollInterval, func() bool {
		if s.dir == "" {
			now, _ := os.ReadDir(allocs)
			for _, d := range now {
				if !slices.ContainsFunc(before, func(old os.DirEntry) bool { return old.Name() == d.Name() }) {
					s.allocID, s.dir = d.Name(), filepath.Join(allocs, d.Name())
				}
			}
		}
		_, err := s.allocation()
		return err == nil
	})
	return s, time.Since(p.started), err
}

// running starts taskapi with a job, and returns when all of its tasks run.
func (env *environment) running(ctx context.Context, job string, tasks int) (*agent, error) {
	s, err := env.agent(env.path(".data"), job)
	if err != nil {
		return nil, err
	}
	if err := s.allRun(ctx, tasks); err != nil {
		s.stopInto(&err)
		return nil, err
	}
	return s, nil
}

// shared returns the sleeping tasks that the rounds of a measurement share.
func (env *environment) shared(ctx context.Context, tasks int) (_ *agent, err error) {
	if env.group == nil {
		env.group, err = env.running(ctx, sleepers(tasks, identityBlock), tasks)
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

// taskToken returns the token of the task with the number.
func (s *agent) taskToken(i int) (string, error) {
	return tokenIn(filepath.Join(s.dir, fmt.Sprintf("t%d", i), "secrets", "nomad_token"))
}

func tokenIn(file string) (string, error) {
	token, err := os.ReadFile(file)
	return strings.TrimSpace(string(token)), err
}

// target returns the socket of the task with the number, and a request with its token.
func (s *agent) target(i int, path string) (target, error) {
	token, err := s.taskToken(i)
	return target{socket: filepath.Join(s.dir, fmt.Sprintf("t%d", i), "secrets", "api.sock"),
		requests: [][]byte{get(path, token)}}, err
}

func checksPath(allocID string) string { return "/v1/client/allocation/" + allocID + "/checks" }

// answersOperator waits until the operator gets a 200, and returns how long that took from exec.
func (s *agent) answersOperator(ctx context.Context) (time.Duration, error) {
	err := s.until(ctx, "the operator's first 200", startTime, pollInterval, func() bool {
		_, err := s.allocation()
		return err == nil
	})
	return time.Since(s.started), err
}

// allRun waits until that number of tasks run.
func (s *agent) allRun(ctx context.Context, tasks int) error {
	running := 0
	limit := startTime + time.Duration(tasks)*startTimeEach
	err := s.until(ctx, "the tasks to run", limit, 20*time.Millisecond, func() bool {
		alloc, err := s.allocation()
		if err != nil {
			return false
		}
		running = 0
		for _, task := range alloc.TaskStates {
			if task.State == "running" {
				running++
			}
		}
		return running == tasks
	})
	if err != nil {
		return fmt.Errorf("%w (%d of %d tasks run)", err, running, tasks)
	}
	return nil
}

// keeper finds the keeper's process: the other one that runs taskapi's executable.
func (s *agent) keeper(env *environment) (int, error) {
	others := slices.DeleteFunc(processesWith("exe", env.binary), func(pid int) bool { return pid == s.cmd.Process.Pid })
	if len(others) != 1 {
		return 0, fmt.Errorf("want one keeper beside the agent, found the processes %v", others)
	}
	return others[0], nil
}
