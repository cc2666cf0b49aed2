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

// A sidecar is a taskapi under test.
type sidecar struct {
	*process
	allocID string
	dir     string // the allocation's directory
}

// sidecar starts taskapi in the data directory with the program, executed again with these arguments, as its task.
func (l *lab) sidecar(dataDir string, flags []string, task ...string) (*sidecar, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return nil, fmt.Errorf("make an allocation ID: %w", err)
	}
	allocID := strings.TrimSpace(string(id))
	quoted := make([]string, len(task))
	for i, arg := range task {
		quoted[i] = strconv.Quote(arg)
	}
	job := l.path(".nomad.hcl")
	text := fmt.Sprintf(jobFile, strconv.Quote(l.self), strings.Join(quoted, ", "))
	if err := os.WriteFile(job, []byte(text), 0o644); err != nil {
		return nil, err
	}
	args := append([]string{"run", "-data-dir", dataDir, "-alloc-id", allocID}, flags...)
	p, err := start(l.binary, append(args, job)...)
	if err != nil {
		return nil, err
	}
	return &sidecar{process: p, allocID: allocID, dir: filepath.Join(dataDir, "allocs", allocID)}, nil
}

func (s *sidecar) taskSocket() string     { return filepath.Join(s.dir, taskName, "secrets", "api.sock") }
func (s *sidecar) taskToken() string      { return filepath.Join(s.dir, taskName, "secrets", "nomad_token") }
func (s *sidecar) operatorSocket() string { return filepath.Join(s.dir, "operator.sock") }
func (s *sidecar) operatorToken() string  { return filepath.Join(s.dir, "operator.token") }
func (s *sidecar) checksPath() string     { return checksPath(s.allocID) }

func checksPath(allocID string) string { return "/v1/client/allocation/" + allocID + "/checks" }

// target is the task's own socket with its own token, once every check has succeeded, and the reply that it gives.
func (s *sidecar) target(ctx context.Context) (target, reply, error) {
	var last reply
	var request []byte
	err := s.until(ctx, "the checks to succeed", startTime, 20*time.Millisecond, func() bool {
		token, err := os.ReadFile(s.taskToken())
		if err != nil {
			return false
		}
		request = get(s.checksPath(), strings.TrimSpace(string(token)))
		last, err = exchange(s.taskSocket(), request)
		return err == nil && last.status == http.StatusOK && succeeded(last.body)
	})
	if err != nil {
		return target{}, reply{}, fmt.Errorf("%w (last status %d)", err, last.status)
	}
	return target{socket: s.taskSocket(), requests: [][]byte{request}}, last, nil
}

// succeeded reports whether the answer holds two checks that succeeded.
func succeeded(body []byte) bool {
	var checks map[string]struct{ Status string }
	if json.Unmarshal(body, &checks) != nil || len(checks) != 2 {
		return false
	}
	for _, check := range checks {
		if check.Status != "success" {
			return false
		}
	}
	return true
}
