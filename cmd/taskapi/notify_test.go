package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"taskapi/allocrunner/datadir"
	"taskapi/internal/must"
)

// notifyForTest says a text on the socket of the task that this process belongs to.
func notifyForTest(text string) {
	conn, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
	if err == nil {
		_, err = conn.Write([]byte(text))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// notifyJob has a sidecar that is ready when there is a file "ready", and alive until there is a file "hang". A main
// task, which is ready when there is a file "ready", and a poststart task wait for one another.
const notifyJob = `
job "notify" {
  group "g" {
    update {
      min_healthy_time = "1ms"
    }
    restart {
      attempts = 3
      delay    = "1s"
    }
    task "side" {
      driver = "raw_exec"
      lifecycle {
        hook    = "prestart"
        sidecar = true
      }
      meta {
        taskapi_notify        = "true"
        taskapi_watchdog      = "10s"
        taskapi_ready_timeout = "10m"
      }
      config {
        command = "/bin/sh"
        args    = ["-c", <<-EOT
          NOTIFY STATUS=loading
          while [ ! -e local/ready ]; do sleep 0.05; done
          NOTIFY READY=1
          while [ ! -e local/hang ]; do NOTIFY WATCHDOG=1; sleep 0.1; done
          rm local/hang
          while :; do sleep 0.05; done
        EOT
        ]
      }
    }
    task "main" {
      driver = "raw_exec"
      meta {
        taskapi_notify        = "true"
        taskapi_ready_timeout = "10m"
      }
      config {
        command = "/bin/sh"
        args    = ["-c", <<-EOT
          while [ ! -e local/ready ]; do sleep 0.05; done
          NOTIFY READY=1
          while :; do sleep 0.05; done
        EOT
        ]
      }
    }
    task "post" {
      driver = "raw_exec"
      lifecycle {
        hook    = "poststart"
        sidecar = true
      }
      config {
        command = "/bin/sh"
        args    = ["-c", "while :; do sleep 0.05; done"]
      }
    }
  }
}
`

// TestReadyTasks kills taskapi before and after a task says that it is ready: the tasks that wait for it start then,
// and not before. A task that gives no sign of life is restarted, also when it began while no taskapi ran.
func TestReadyTasks(t *testing.T) {
	t.Parallel()
	for _, client := range []string{"a socket", "systemd-notify"} {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			command := "TASKAPI_TEST_NOTIFY=$1 " + self(t)
			if client != "a socket" {
				if _, err := exec.LookPath(client); err != nil {
					t.Skip(err)
				}
				command = client + " $1"
			}
			testReadyTasks(t, command)
		})
	}
}

func testReadyTasks(t *testing.T, client string) {
	dir := shortDir(t)
	job := regexp.MustCompile(`NOTIFY ([A-Z]+=\w+)`).ReplaceAllString(notifyJob, client)
	file := jobFile(t, job)
	touch := func(task, name string) {
		t.Helper()
		writeFile(t, filepath.Join(datadir.Dir(dir).Alloc(testAllocID), task, "local", name), "")
	}
	has := func(p taskapiProcess, line string) {
		t.Helper()
		until(t, p, line, func() bool { return strings.Contains(p.out.String(), line) })
	}
	lacks := func(p taskapiProcess, line string) {
		t.Helper()
		if strings.Contains(p.out.String(), line) {
			t.Errorf("it says %q:\n%s", line, p.out)
		}
	}
	healthy := func() bool {
		return strings.Contains(taskapi(t, "status", "-data-dir", dir, testAllocID), "healthy, since")
	}
	const mainStarted, postStarted = "main        Started", "post        Started"
	first := startProcess(t, dir, file)
	has(first, "loading")
	if ps := taskapi(t, "ps", "-data-dir", dir); !strings.Contains(ps, "not ready: loading") {
		t.Errorf("ps: %s", ps)
	}
	kill(t, first)
	lacks(first, mainStarted)
	touch("side", "ready") // while no taskapi runs
	second := startProcess(t, dir, file)
	has(second, mainStarted)
	kill(t, second)
	lacks(second, postStarted)
	if healthy() {
		t.Error("it is healthy before all tasks are ready")
	}

	third := startProcess(t, dir, file)
	touch("main", "ready")
	has(third, postStarted)
	until(t, third, "healthy", healthy)
	lacks(third, "Restart Signaled")
	kill(t, third)
	touch("side", "hang")
	fourth := startProcess(t, dir, file)
	has(fourth, "no sign of life for 10s")
	has(fourth, "Signal: 6")
	has(fourth, "side        Started")
	lacks(fourth, mainStarted)
	must.OK(t, fourth.Process.Signal(os.Interrupt))
	_ = fourth.Wait()
}

// TestNotReadyInTime is a failure by the restart policy.
func TestNotReadyInTime(t *testing.T) {
	t.Parallel()
	job := strings.ReplaceAll(notifyJob, `"10m"`, `"100ms"`)
	job = strings.ReplaceAll(strings.ReplaceAll(job, "NOTIFY ", ": "), "attempts = 3", `attempts = 1
      mode     = "fail"`)
	p := startProcess(t, shortDir(t), jobFile(t, job))
	if err := p.Wait(); err == nil {
		t.Errorf("it ended well")
	}
	for _, want := range []string{"The task was not ready within 100ms", "side        Restarting",
		"side        Not Restarting"} {
		if !strings.Contains(p.out.String(), want) {
			t.Errorf("%q is not in the output:\n%s", want, p.out)
		}
	}
}

// TestReadyInALongDirectory says READY=1 where neither the socket's path nor the task's name has room in an address.
func TestReadyInALongDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(shortDir(t), strings.Repeat("d", 100))
	job := strings.ReplaceAll(notifyJob, `task "side"`, `task "`+strings.Repeat("s", 100)+`"`)
	job = regexp.MustCompile(`NOTIFY ([A-Z]+=\w+)`).ReplaceAllString(job, "TASKAPI_TEST_NOTIFY=$1 "+self(t))
	job = strings.ReplaceAll(job, "while [ ! -e local/ready ]; do sleep 0.05; done", ":")
	p := startProcess(t, dir, jobFile(t, job))
	until(t, p, "the start of the last task", func() bool {
		return regexp.MustCompile(`post +Started`).MatchString(p.out.String())
	})
	must.OK(t, p.Process.Signal(os.Interrupt))
	_ = p.Wait()
}
