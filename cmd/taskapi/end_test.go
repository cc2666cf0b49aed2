package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// sleepJob is a job of a name whose task has an identity and sleeps.
const sleepJob = `
job "%s" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      identity {
        file = true
      }
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
    }
  }
}
`

// promptJob is a task that ends as soon as it is told to.
var promptJob = fmt.Sprintf(sleepJob, "prompt")

// startPrompt runs promptJob and returns the SDK as its operator.
func startPrompt(t *testing.T) (*running, *api.Client) {
	t.Helper()
	r := startRun(t, shortDir(t), promptJob)
	r.eventually("started", func() bool { return strings.Contains(r.stdout.String(), "Started") })
	return r, r.client(r.layout.OperatorSocket(testAllocID), r.file("operator.token"))
}

// TestTheEndCanBeRead stops a task that ends at once, as nomad alloc stop does, and reads the evaluation and the
// allocation until the allocation has ended, and once more. It never fails: use -count for more attempts.
func TestTheEndCanBeRead(t *testing.T) {
	t.Parallel()
	const times = 12
	done := make(chan struct{}, 8) // so many at once
	for i := range times {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			done <- struct{}{}
			defer func() { <-done }()
			r, client := startPrompt(t)
			stopped := must.Get(client.Allocations().Stop(&api.Allocation{ID: testAllocID}, nil))(t)
			for {
				eval, _, err := client.Evaluations().Info(stopped.EvalID, nil)
				if err != nil || eval.Status != api.EvalStatusComplete {
					t.Fatalf("evaluation: %+v, %v", eval, err)
				}
				if _, _, err := client.Evaluations().Allocations(eval.ID, nil); err != nil {
					t.Fatal("its allocations:", err)
				}
				alloc, _, err := client.Allocations().Info(testAllocID, nil)
				if err != nil {
					t.Fatal("the allocation:", err)
				}
				if alloc.ClientTerminalStatus() && strings.Contains(r.stdout.String(), "Ended") {
					break
				}
			}
			if _, _, err := client.Evaluations().Info(stopped.EvalID, nil); err != nil { // Ended is the last that run says
				t.Error("the evaluation after the end:", err)
			}
			client.Close()
			if code := <-r.code; code != base.ExitOK {
				t.Errorf("exit code %d:\n%s", code, r.stderr.String())
			}
			r.code <- base.ExitOK
		})
	}
}

// TestATaskReadsNoEnd: its identity is not good any more, even while an operator reads.
func TestATaskReadsNoEnd(t *testing.T) {
	t.Parallel()
	r, client := startPrompt(t)
	must.Get(client.Allocations().Stop(&api.Allocation{ID: testAllocID}, nil))(t)
	r.eventually("ended", func() bool {
		if _, _, err := client.Allocations().Info(testAllocID, nil); err != nil {
			t.Fatal("the operator:", err)
		}
		return strings.Contains(r.stdout.String(), "Ended")
	})
	if conn, err := net.Dial("unix", r.allocDir("t", "secrets", "api.sock")); err == nil {
		conn.Close()
		t.Error("the task's socket is open after the end")
	}
	if _, _, err := client.Allocations().Info(testAllocID, nil); err != nil {
		t.Error("the operator:", err)
	}
}

// TestUpdateAfterTheEnd says that the allocation has ended, also while its taskapi still answers.
func TestUpdateAfterTheEnd(t *testing.T) {
	t.Parallel()
	r, client := startPrompt(t)
	must.Get(client.Allocations().Stop(&api.Allocation{ID: testAllocID}, nil))(t)
	for ended := false; !ended; {
		alloc := asked(client.Allocations().Info(testAllocID, nil))(t)
		ended = alloc.ClientTerminalStatus()
	}
	var said polltest.Log
	code := cli.Run(t.Context(), []string{"update", "--replace", "--data-dir", string(r.layout), testAllocID,
		jobFile(t, strings.Replace(promptJob, "1000", "2000", 1))}, testEnvironment(&said, &said))
	if code != base.ExitFailed || !strings.Contains(said.String(), " has ended (complete); ") {
		t.Errorf("exit code %d: %s", code, said.String())
	}
}

// TestSDKGCOfARealAllocation: what runs is refused and stays; what has ended goes with its directory, and its taskapi
// exits.
func TestSDKGCOfARealAllocation(t *testing.T) {
	t.Parallel()
	for name, collect := range map[string]func(*api.Client) error{
		"the allocation": func(client *api.Client) error {
			return client.Allocations().GC(&api.Allocation{ID: testAllocID}, nil)
		},
		"the node": func(client *api.Client) error {
			alloc, _, err := client.Allocations().Info(testAllocID, nil)
			if err != nil {
				return err
			}
			return client.Nodes().GC(alloc.NodeID, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, client := startPrompt(t)
			err := client.Allocations().GC(&api.Allocation{ID: testAllocID}, nil)
			if want := "409 (No such allocation on client, or allocation not eligible for GC)"; err == nil ||
				!strings.Contains(err.Error(), want) {
				t.Fatalf("gc of what runs: %v, want %s", err, want)
			}
			must.Get(client.Allocations().Stop(&api.Allocation{ID: testAllocID}, nil))(t)
			for ended := false; !ended; {
				alloc := asked(client.Allocations().Info(testAllocID, nil))(t)
				ended = alloc.ClientTerminalStatus() && strings.Contains(r.stdout.String(), "Ended")
			}
			must.OK(t, collect(client))
			if _, err := os.Stat(r.allocDir()); !os.IsNotExist(err) {
				t.Errorf("the directory after gc: %v", err)
			}
			if code := <-r.code; code != base.ExitOK {
				t.Errorf("exit code %d:\n%s", code, r.stderr.String())
			}
			r.code <- base.ExitOK
			if left := belongingTo(string(r.layout)); len(left) > 0 {
				t.Errorf("left running: %v", left)
			}
			if said := r.stderr.String(); strings.Contains(said, "level=") {
				t.Errorf("it logged:\n%s", said)
			}
		})
	}
}
