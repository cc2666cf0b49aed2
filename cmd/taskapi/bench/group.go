package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// startTimeEach is added to startTime for each task of a group.
const startTimeEach = 200 * time.Millisecond

// groupFile is a job of one group; what goes in are blocks of the group.
const groupFile = `
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

// sleeperTask is a task that does nothing; what goes in are its number and further blocks.
const sleeperTask = `
    task "t%d" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["infinity"]
      }
%s
    }
`

// sleepers returns a job of so many tasks that do nothing.
func sleepers(tasks int) string {
	var blocks strings.Builder
	for i := range tasks {
		fmt.Fprintf(&blocks, sleeperTask, i, "")
	}
	return fmt.Sprintf(groupFile, blocks.String())
}

// group starts taskapi with a job, and returns when so many tasks run.
func (env *environment) group(ctx context.Context, job string, tasks int) (*agent, error) {
	a, err := env.allocation(env.path(".data"), job)
	if err != nil {
		return nil, err
	}
	s, err := env.run(a)
	if err != nil {
		return nil, err
	}
	if err := s.allRun(ctx, tasks); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// allRun waits until so many tasks run.
func (s *agent) allRun(ctx context.Context, tasks int) error {
	running := 0
	err := s.until(ctx, "the tasks to run", startTime+time.Duration(tasks)*startTimeEach, 20*time.Millisecond, func() bool {
		alloc, err := s.alloc()
		running = alloc.running()
		return err == nil && running == tasks
	})
	if err != nil {
		return fmt.Errorf("%w (%d of %d tasks run)", err, running, tasks)
	}
	return nil
}

// An allocState is what the measurements look at of GET /v1/allocation/:id.
type allocState struct {
	TaskStates map[string]struct {
		State    string
		Restarts int
	}
}

func (s *agent) alloc() (allocState, error) {
	var alloc allocState
	r, err := s.asOperator(func(token string) []byte { return get("/v1/allocation/"+s.allocID, token) })
	if err != nil {
		return alloc, err
	}
	if r.status != http.StatusOK {
		return alloc, fmt.Errorf("read the allocation: status %d", r.status)
	}
	return alloc, json.Unmarshal(r.body, &alloc)
}

func (a allocState) running() int {
	running := 0
	for _, task := range a.TaskStates {
		if task.State == "running" {
			running++
		}
	}
	return running
}

// keeper finds the keeper's process: the other one that runs taskapi's executable.
func (s *agent) keeper(env *environment) (int, error) {
	pids, err := processesOf(env.binary)
	if err != nil {
		return 0, err
	}
	others := slices.DeleteFunc(pids, func(pid int) bool { return pid == s.cmd.Process.Pid })
	if len(others) != 1 {
		return 0, fmt.Errorf("want one keeper beside the agent, found the processes %v", others)
	}
	return others[0], nil
}
