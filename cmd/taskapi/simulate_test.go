package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/cmd/taskapi/internal/cli/base"
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

// TestSimulate runs twenty allocations in one process. Each socket answers its own token and refuses those of its
// neighbours, a restart and a stop over the API are done, and nothing is left at the end.
func TestSimulate(t *testing.T) {
	t.Parallel()
	const allocs = 20
	dir := shortDir(t)
	file := mustWrite(t, filepath.Join(t.TempDir(), "job.nomad.hcl"), crowdJob)
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{t: t, layout: datadir.Dir(dir), cancel: cancel, code: make(chan int, 1)}
	go func() {
		r.code <- cli.Run(ctx, []string{"run", "--data-dir", dir, "--simulate", fmt.Sprint(allocs), file},
			testEnvironment(&r.stdout, &r.stderr))
	}()
	t.Cleanup(func() { r.stop() })

	var ids []string
	r.eventually("every task runs", func() bool {
		ids, _ = r.layout.IDs()
		started := 0
		for _, id := range ids {
			if exists(r.layout.TaskSocket(id, "b")) { // the last thing that is made
				started++
			}
		}
		return started == allocs
	})
	status := func(addr, token, id string) int {
		t.Helper()
		status, err := statusOf(t.Context(), addr, token, http.MethodGet, "/v1/allocation/"+id)
		if err != nil {
			t.Fatal(err)
		}
		return status
	}
	tokens := map[string][2]string{}
	for _, id := range ids {
		tokens[id] = [2]string{readFile(t, tokenOf(r.layout, id, "a")), readFile(t, tokenOf(r.layout, id, "b"))}
	}
	for i, id := range ids {
		neighbour := ids[(i+1)%allocs]
		operator := readFile(t, r.layout.OperatorToken(id))
		for _, tc := range []struct {
			what, addr, token string
			want              int
		}{
			{"a with its own token", r.layout.TaskSocket(id, "a"), tokens[id][0], 200},
			{"b with its own token", r.layout.TaskSocket(id, "b"), tokens[id][1], 200},
			{"a with no token", r.layout.TaskSocket(id, "a"), "", 401},
			{"a with the token of b", r.layout.TaskSocket(id, "a"), tokens[id][1], 403},
			{"a with the token of the neighbour's a", r.layout.TaskSocket(id, "a"), tokens[neighbour][0], 403},
			{"the operator with the operator's token", r.layout.OperatorSocket(id), operator, 200},
			{"the operator with the neighbour's token", r.layout.OperatorSocket(id),
				readFile(t, r.layout.OperatorToken(neighbour)), 403},
			{"the operator with the token of a", r.layout.OperatorSocket(id), tokens[id][0], 403},
			{"a with the operator's token", r.layout.TaskSocket(id, "a"), operator, 403},
		} {
			if got := status(tc.addr, tc.token, id); got != tc.want {
				t.Errorf("allocation %d, %s: %d, want %d", i, tc.what, got, tc.want)
			}
		}
	}

	acted := r.client(r.layout.OperatorSocket(ids[0]), readFile(t, r.layout.OperatorToken(ids[0])))
	alloc, _, err := acted.Allocations().Info(ids[0], nil)
	if err != nil || alloc.ClientStatus != api.AllocClientStatusRunning {
		t.Fatalf("%+v, %v; want it running", alloc, err)
	}
	if err := acted.Allocations().Restart(alloc, "a", nil); err != nil {
		t.Error(err)
	}
	if renewed := readFile(t, tokenOf(r.layout, ids[0], "a")); renewed == tokens[ids[0]][0] ||
		status(r.layout.TaskSocket(ids[0], "a"), renewed, ids[0]) != 200 {
		t.Error("a restarted task has no new token, or one that is refused")
	}
	if _, err := acted.Allocations().Stop(alloc, nil); err != nil {
		t.Error(err)
	}
	r.eventually("the one that is stopped has left nothing", func() bool { return !exists(r.layout.Alloc(ids[0])) })
	if got := status(r.layout.TaskSocket(ids[1], "a"), tokens[ids[1]][0], ids[1]); got != 200 {
		t.Errorf("another one then: %d, want 200", got)
	}
	if code := r.stop(); code != base.ExitOK {
		t.Errorf("exit code %d:\n%s", code, r.stderr.String())
	}
	if left, err := os.ReadDir(r.layout.Allocs()); err != nil || len(left) > 0 {
		t.Errorf("left in the data directory: %v, %v", left, err)
	}
}

// TestSimulateRefuses what allocations without processes can't have.
func TestSimulateRefuses(t *testing.T) {
	t.Parallel()
	file := mustWrite(t, filepath.Join(t.TempDir(), "job.nomad.hcl"), crowdJob)
	for _, flags := range [][]string{{"--simulate=-1"}, {"--simulate=2", "--detach"},
		{"--simulate=2", "--alloc-id", testAllocID}} {
		var out, errs syncBuffer
		dir := t.TempDir()
		if code := cli.Run(t.Context(), append(append([]string{"run", "--data-dir", dir}, flags...), file),
			testEnvironment(&out, &errs)); code != base.ExitUsage {
			t.Errorf("%q: exit code %d: %s", flags, code, errs.String())
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%q: left %v", flags, left)
		}
	}
}

func tokenOf(d datadir.Dir, id, task string) string {
	return filepath.Join(d.Alloc(id), task, "secrets", "nomad_token")
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
