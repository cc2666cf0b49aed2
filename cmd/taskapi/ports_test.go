package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"taskapi/allocrunner/datadir"
)

const portJob = `
job "port" {
  type = "batch"
  group "g" {
    network {
      port "p" {
        static = %d
      }
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo $$ > local/pid; exec sleep 1000"]
      }
    }
  }
}
`

// TestAPortOutlivesItsTaskapi: while the tasks run, no other allocation gets their port, also when taskapi was killed;
// and one that gets it when the keeper was killed, too, keeps nobody from stopping what had it before.
func TestAPortOutlivesItsTaskapi(t *testing.T) {
	t.Parallel()
	var port int
	for err := errors.ErrUnsupported; err != nil; { // below the ports that others get who ask for any
		port = 10_000 + rand.IntN(10_000)
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
		}
	}
	file := mustWrite(t, filepath.Join(t.TempDir(), "job.nomad.hcl"), fmt.Sprintf(portJob, port))
	dir, elsewhere, third := shortDir(t), shortDir(t), shortDir(t)
	alloc := datadir.Dir(dir).Alloc(testAllocID)
	pidFile := filepath.Join(alloc, "t", "local", "pid")
	first := startProcess(t, dir, file)
	until(t, first, "it runs", func() bool { return written(pidFile) })
	pid, _ := os.ReadFile(pidFile)
	kill(t, first)

	other := startProcess(t, elsewhere, file)
	var exit *exec.ExitError
	if err := other.Wait(); !errors.As(err, &exit) ||
		!strings.Contains(other.out.String(), "reserved for another allocation in "+alloc) {
		t.Fatalf("another allocation with the port: %v\n%s", err, other.out)
	}
	if !alive(pid) {
		t.Fatal("the task does not run any more")
	}
	killKeeper(t, dir)
	until(t, first, "the task is gone", func() bool { return !alive(pid) })

	last := startProcess(t, third, file)
	until(t, last, "another one has the port", func() bool { return strings.Contains(last.out.String(), " Started") })
	out := taskapi(t, "stop", "--data-dir", dir, testAllocID)
	if !strings.Contains(out, "allocation is complete") {
		t.Errorf("stop: %s", out)
	}
	taskapi(t, "stop", "--data-dir", third, testAllocID)
	if err := last.Wait(); err != nil {
		t.Errorf("%v:\n%s", err, last.out)
	}
}
