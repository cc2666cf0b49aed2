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
	"syscall"
	"testing"

	"taskapi/allocrunner/datadir"
	"taskapi/internal/must"
	"taskapi/internal/proc"
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
        args    = ["-c", "sleep 1000 & echo $! > local/left; echo $$ > local/pid; exec sleep 1000"]
      }
    }
  }
}
`

// freePort returns a free port from first to below last, below the ports that others get who ask for any.
func freePort(t *testing.T, first, last int) int {
	t.Helper()
	for range 1000 {
		port := first + rand.IntN(last-first)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatalf("no port from %d to %d is free", first, last)
	return 0
}

// TestAPortOutlivesItsTaskapi: while the tasks run, no other allocation gets their port, also when taskapi was killed,
// nor while a process is left that a killed keeper has left; and one that gets it after that keeps nobody from stopping
// what had it before.
func TestAPortOutlivesItsTaskapi(t *testing.T) {
	t.Parallel()
	port := freePort(t, 10_000, 20_000)
	file := jobFile(t, fmt.Sprintf(portJob, port))
	dir, elsewhere, third := shortDir(t), shortDir(t), shortDir(t)
	alloc := datadir.Dir(dir).Alloc(testAllocID)
	pidFile := filepath.Join(alloc, "t", "local", "pid")
	first := startProcess(t, dir, file)
	until(t, first, "it runs", func() bool { return written(pidFile) })
	pid, _ := os.ReadFile(pidFile)
	kill(t, first)

	refused := func(by []byte) {
		t.Helper()
		other := startProcess(t, elsewhere, file)
		var exit *exec.ExitError
		if err := other.Wait(); !errors.As(err, &exit) ||
			!strings.Contains(other.out.String(), "reserved for another allocation in "+alloc) {
			t.Fatalf("another allocation with the port: %v\n%s", err, other.out)
		}
		if !alive(by) {
			t.Fatal("what has the port does not run any more")
		}
	}
	refused(pid)
	left := must.Get(os.ReadFile(filepath.Join(alloc, "t", "local", "left")))(t)
	killKeeper(t, dir)
	until(t, first, "the task is gone", func() bool { return !alive(pid) })
	refused(left)
	must.OK(t, syscall.Kill(atoi(strings.TrimSpace(string(left))), syscall.SIGKILL))
	until(t, first, "nothing is left", func() bool { return !alive(left) })

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

const lowPortJob = `
job "web" {
  group "g" {
    restart {
      attempts = 10000
      interval = "24h"
      delay    = "1s"
    }
    network {
      port "p" {
        static = %d
      }
    }
    task "web" {
      driver = "raw_exec"
      env {
        TASKAPI_TEST_SERVE = "127.0.0.1:%d"
      }
      config {
        command = "/bin/sh"
        args    = ["-c", "grep ^Cap /proc/self/status >local/caps; exec %s"]
      }
    }
    task "beside" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "grep ^Cap /proc/self/status >local/caps; exec sleep 1000"]
      }
    }
  }
}
`

// TestTasksOfTheirOwnUsersBindALowPort: if their group has a static port that is root's to bind, they can bind such a
// port, have no other capability, and so have the programs beside them. Tasks of other groups have none and can't.
func TestTasksOfTheirOwnUsersBindALowPort(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives users to tasks")
	}
	first := proc.FirstUnprivilegedPort()
	if first < 600 {
		t.Skipf("every user may bind the ports from %d", first)
	}
	t.Parallel()
	low := freePort(t, 500, first)
	dir, elsewhere, programs := shortDir(t), shortDir(t), shortDir(t)
	for _, d := range []string{dir, elsewhere, programs} { // tasks of other users pass through
		must.OK(t, os.Chmod(d, 0o711))
	}
	program := filepath.Join(programs, "program")
	self, err := os.Executable()
	if err == nil {
		err = exec.Command("/bin/cp", self, program).Run()
	}
	must.OK(t, err)
	run := func(dir string, static int) (p taskapiProcess, wantCaps func(task, want string)) {
		file := jobFile(t, fmt.Sprintf(lowPortJob, static, low, program))
		p = startProcess(t, dir, file, "--isolate-users")
		return p, func(task, want string) {
			t.Helper()
			caps := filepath.Join(datadir.Dir(dir).Alloc(testAllocID), task, "local", "caps")
			until(t, p, task+" runs", func() bool { return written(caps) && proc.Value(caps, "CapAmb") != "" })
			for _, set := range []string{"CapPrm", "CapEff", "CapAmb"} {
				if got := proc.Value(caps, set); got != want {
					t.Errorf("task %s with the port %d: %s is %s, want %s", task, static, set, got, want)
				}
			}
		}
	}
	const none, netBind = "0000000000000000", "0000000000000400"
	address := fmt.Sprintf("127.0.0.1:%d", low)
	serves := func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	p, wantCaps := run(elsewhere, freePort(t, 10_000, 20_000))
	wantCaps("web", none)
	wantCaps("beside", none)
	until(t, p, "the task can't bind the port", func() bool {
		return strings.Contains(p.out.String(), "listen tcp "+address+": bind: permission denied")
	})
	taskapi(t, "stop", "--data-dir", elsewhere, testAllocID)
	if err := p.Wait(); err != nil {
		t.Errorf("%v:\n%s", err, p.out)
	}

	p, wantCaps = run(dir, low)
	wantCaps("web", netBind)
	wantCaps("beside", netBind)
	until(t, p, "the task has bound the port", serves)
	out := taskapi(t, "exec", "--data-dir", dir, testAllocID, "beside", "--", "/bin/grep", "^CapEff", "/proc/self/status")
	if strings.TrimSpace(out) != "CapEff:\t"+netBind {
		t.Errorf("a program beside the task: %s", out)
	}
	kill(t, p)
	killKeeper(t, dir)
	until(t, p, "the port is free", func() bool { return !serves() })
	p, wantCaps = run(dir, low)
	until(t, p, "the task has bound the port again", serves)
	wantCaps("web", netBind)
	must.OK(t, p.Process.Signal(syscall.SIGTERM))
	if err := p.Wait(); err != nil {
		t.Errorf("%v:\n%s", err, p.out)
	}
}
