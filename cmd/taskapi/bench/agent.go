package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// startTime is how long taskapi may take until what a measurement needs is there.
const startTime = 30 * time.Second

// taskName is the one task of the allocation under test.
const taskName = "server"

// jobFile runs this program as a task. Its two checks, once a second, are part of what an idle taskapi does.
const jobFile = `
job "bench" {
  group "g" {
    network {
      port "http" {}
    }
    restart {
      attempts = 0
      mode     = "fail"
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
    task "` + taskName + `" {
      driver = "raw_exec"
      identity {
        env  = true
        file = true
      }
      config {
        command = %s
        args    = [%s]
      }
    }
  }
}
`

// An agent is a taskapi under test.
type agent struct {
	*process
	allocID string
	dir     string // the allocation's directory
}

// agent starts taskapi in the data directory with the program, executed again with these arguments, as its task.
func (env *environment) agent(dataDir string, flags []string, task ...string) (*agent, error) {
	quoted := make([]string, len(task))
	for i, arg := range task {
		quoted[i] = strconv.Quote(arg)
	}
	a, err := env.allocation(dataDir, fmt.Sprintf(jobFile, strconv.Quote(env.self), strings.Join(quoted, ", ")))
	if err != nil {
		return nil, err
	}
	return env.run(a, flags...)
}

// An allocation is what taskapi runs, once or again.
type allocation struct{ id, dataDir, jobFile string }

// allocation writes the job file of a new allocation.
func (env *environment) allocation(dataDir, job string) (allocation, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return allocation{}, fmt.Errorf("make an allocation ID: %w", err)
	}
	a := allocation{id: strings.TrimSpace(string(id)), dataDir: dataDir, jobFile: env.path(".nomad.hcl")}
	return a, os.WriteFile(a.jobFile, []byte(job), 0o644)
}

// run starts taskapi on the allocation, whether it has run before or not.
func (env *environment) run(a allocation, flags ...string) (*agent, error) {
	args := append([]string{"run", "-data-dir", a.dataDir, "-alloc-id", a.id}, flags...)
	p, err := start(env.binary, append(args, a.jobFile)...)
	if err != nil {
		return nil, err
	}
	return &agent{process: p, allocID: a.id, dir: filepath.Join(a.dataDir, "allocs", a.id)}, nil
}

// asOperator sends a request, made with the operator's token, to the operator's socket.
func (s *agent) asOperator(request func(token string) []byte) (reply, error) {
	token, err := os.ReadFile(s.operatorToken())
	if err != nil {
		return reply{}, err
	}
	return exchange(s.operatorSocket(), request(strings.TrimSpace(string(token))))
}

// answersOperator reports whether the operator gets a 200.
func (s *agent) answersOperator() bool {
	r, err := s.asOperator(func(token string) []byte { return get(s.checksPath(), token) })
	return err == nil && r.status == http.StatusOK
}

func (s *agent) taskSocket() string     { return filepath.Join(s.dir, taskName, "secrets", "api.sock") }
func (s *agent) taskToken() string      { return filepath.Join(s.dir, taskName, "secrets", "nomad_token") }
func (s *agent) operatorSocket() string { return filepath.Join(s.dir, "operator.sock") }
func (s *agent) operatorToken() string  { return filepath.Join(s.dir, "operator.token") }
func (s *agent) checksPath() string     { return checksPath(s.allocID) }

func checksPath(allocID string) string { return "/v1/client/allocation/" + allocID + "/checks" }

// target returns the task's own socket with its own token, once every check has succeeded, and the reply that it gives.
func (s *agent) target(ctx context.Context) (target, reply, error) {
	var last reply
	var request []byte
	err := s.until(ctx, "the checks to succeed", startTime, 20*time.Millisecond, func() bool {
		token, err := os.ReadFile(s.taskToken())
		if err != nil {
			return false
		}
		request = get(s.checksPath(), strings.TrimSpace(string(token)))
		last, err = exchange(s.taskSocket(), request)
		return err == nil && last.status == http.StatusOK && succeeded(last.body, 2)
	})
	if err != nil {
		return target{}, reply{}, fmt.Errorf("%w (last status %d)", err, last.status)
	}
	return target{socket: s.taskSocket(), requests: [][]byte{request}}, last, nil
}

// succeeded reports whether the answer holds so many checks, all of which have succeeded.
func succeeded(body []byte, want int) bool {
	var checks map[string]struct{ Status string }
	if json.Unmarshal(body, &checks) != nil || len(checks) != want {
		return false
	}
	for _, check := range checks {
		if check.Status != "success" {
			return false
		}
	}
	return true
}
