package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

const crowdJob = `
job "crowd" {
  group "g" {
    task "a" {
      driver = "raw_exec"
      identity {
        file = true
      }
      config {
        command = "/bin/false"
      }
    }
    task "b" {
      driver = "raw_exec"
      identity {
        file = true
      }
      config {
        command = "/bin/false"
      }
    }
  }
}
`

// TestRun runs twenty allocations in one process. Each socket answers its own token and refuses those of its
// neighbours, a restart and a stop over the API are done, and nothing is left at the end.
func TestRun(t *testing.T) {
	t.Parallel()
	const allocs = 20
	dir, err := os.MkdirTemp("", "t") // short, because the path of a socket has room for 107 bytes
	must.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	layout := datadir.Dir(dir)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, t.Output(), []string{"-data-dir", dir, "-allocations", "20", jobFile(t)}) }()
	stop := func() error {
		cancel()
		err := <-ended
		ended <- err
		return err
	}
	t.Cleanup(func() { _ = stop() })
	eventually := func(what string, ok func() bool) {
		t.Helper()
		for give := time.Now().Add(polltest.Deadline()); !ok(); time.Sleep(20 * time.Millisecond) { // looks at files
			if len(ended) > 0 || time.Now().After(give) {
				t.Fatalf("never %s", what)
			}
		}
	}

	var ids []string
	eventually("does every task run", func() bool {
		ids, _ = layout.IDs()
		started := 0
		for _, id := range ids {
			if exists(layout.TaskSocket(id, "b")) { // the last thing that is made
				started++
			}
		}
		return started == allocs
	})
	status := func(addr, token, id string) int {
		t.Helper()
		status := must.Get(statusOf(t.Context(), addr, token, "/v1/allocation/"+id))(t)
		return status
	}
	tokens := map[string][2]string{}
	for _, id := range ids {
		tokens[id] = [2]string{readFile(t, tokenOf(layout, id, "a")), readFile(t, tokenOf(layout, id, "b"))}
	}
	for i, id := range ids {
		neighbour := ids[(i+1)%allocs]
		operator := readFile(t, layout.OperatorToken(id))
		for _, tc := range []struct {
			what, addr, token string
			want              int
		}{
			{"a with its own token", layout.TaskSocket(id, "a"), tokens[id][0], 200},
			{"b with its own token", layout.TaskSocket(id, "b"), tokens[id][1], 200},
			{"a with no token", layout.TaskSocket(id, "a"), "", 401},
			{"a with the token of b", layout.TaskSocket(id, "a"), tokens[id][1], 403},
			{"a with the token of the neighbour's a", layout.TaskSocket(id, "a"), tokens[neighbour][0], 403},
			{"the operator with the operator's token", layout.OperatorSocket(id), operator, 200},
			{"the operator with the neighbour's token", layout.OperatorSocket(id),
				readFile(t, layout.OperatorToken(neighbour)), 403},
			{"the operator with the token of a", layout.OperatorSocket(id), tokens[id][0], 403},
			{"a with the operator's token", layout.TaskSocket(id, "a"), operator, 403},
		} {
			if got := status(tc.addr, tc.token, id); got != tc.want {
				t.Errorf("allocation %d, %s: %d, want %d", i, tc.what, got, tc.want)
			}
		}
	}

	acted, err := api.NewClient(&api.Config{Address: "unix://" + layout.OperatorSocket(ids[0]),
		SecretID: readFile(t, layout.OperatorToken(ids[0]))})
	must.OK(t, err)
	t.Cleanup(acted.Close)
	alloc, _, err := acted.Allocations().Info(ids[0], nil)
	if err != nil || alloc.ClientStatus != api.AllocClientStatusRunning {
		t.Fatalf("%+v, %v; want it running", alloc, err)
	}
	if err := acted.Allocations().Restart(alloc, "a", nil); err != nil {
		t.Error(err)
	}
	if renewed := readFile(t, tokenOf(layout, ids[0], "a")); renewed == tokens[ids[0]][0] ||
		status(layout.TaskSocket(ids[0], "a"), renewed, ids[0]) != 200 {
		t.Error("a restarted task has no new token, or one that is refused")
	}
	if _, err := acted.Allocations().Stop(alloc, nil); err != nil {
		t.Error(err)
	}
	eventually("has the one that is stopped left nothing", func() bool { return !exists(layout.Alloc(ids[0])) })
	if got := status(layout.TaskSocket(ids[1], "a"), tokens[ids[1]][0], ids[1]); got != 200 {
		t.Errorf("another one then: %d, want 200", got)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(layout.Allocs()); err != nil || len(left) > 0 {
		t.Errorf("left in the data directory: %v, %v", left, err)
	}
}

// TestRunRefuses arguments that are wrong, before it makes anything.
func TestRunRefuses(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"no allocations": {"-allocations", "0", jobFile(t)},
		"no job file":    {"-allocations", "2"},
		"no such file":   {filepath.Join(t.TempDir(), "none")},
	} {
		dir := t.TempDir()
		if err := run(t.Context(), io.Discard, append([]string{"-data-dir", dir}, args...)); err == nil {
			t.Errorf("%s: no error", name)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%s: left %v", name, left)
		}
	}
}

func jobFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "job.nomad.hcl")
	must.OK(t, os.WriteFile(path, []byte(crowdJob), 0o600))
	return path
}

func statusOf(ctx context.Context, addr, token, path string) (int, error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn,
		error) {
		return new(net.Dialer).DialContext(ctx, "unix", addr)
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://local"+path, http.NoBody)
	if err != nil {
		return 0, err
	}
	request.Header.Set("X-Nomad-Token", strings.TrimSpace(token))
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func tokenOf(d datadir.Dir, id, task string) string {
	return filepath.Join(d.Alloc(id), task, "secrets", "nomad_token")
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	content := must.Read(t, path)
	return string(content)
}
