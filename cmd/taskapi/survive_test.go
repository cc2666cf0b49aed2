package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"taskapi/allocrunner/datadir"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// survivorJob is a task that counts its life in its output, and one that ends when it finds a file.
const survivorJob = `
job "survivor" {
  type = "batch"
  group "g" {
    network {
      port "p" {}
    }
    restart {
      attempts = 1
      delay    = "10ms"
      mode     = "fail"
    }
    task "counter" {
      driver = "raw_exec"
      identity {
        env  = true
        file = true
      }
      config {
        command = "/bin/sh"
        args    = ["-c", <<-EOT
          echo $$ > local/pid; i=0; while [ ! -e local/stop ]; do i=$((i+1)); echo $i; sleep 0.01; done; exit 0
          EOT
        ]
      }
    }
    task "fails" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", <<-EOT
          echo run >> local/runs; while [ ! -e local/fail ]; do sleep 0.05; done; rm local/fail; exit 3
          EOT
        ]
      }
    }
  }
}
`

// taskapiProcess is taskapi as a process of its own, which can be killed.
type taskapiProcess struct {
	*exec.Cmd
	out *polltest.Log
}

// startProcess runs the job file in a process.
func startProcess(t *testing.T, dataDir, file string, flags ...string) taskapiProcess {
	t.Helper()
	return startProgram(t, self(t), dataDir, file, flags...)
}

// startProgram runs the job file with a taskapi.
func startProgram(t *testing.T, program, dataDir, file string, flags ...string) taskapiProcess {
	t.Helper()
	return startCommand(t, program, append([]string{"run", "-data-dir", dataDir, "-alloc-id", testAllocID, file},
		flags...)...)
}

// startTakeover takes over from the taskapi that runs an allocation, with a process that is this one's child.
func startTakeover(t *testing.T, program, dataDir, id string) taskapiProcess {
	t.Helper()
	return startCommand(t, program, "takeover", "-data-dir", dataDir, "--detached", id)
}

func startCommand(t *testing.T, program string, args ...string) taskapiProcess {
	t.Helper()
	return startCommandWith(t, program, nil, args...)
}

func startCommandWith(t *testing.T, program string, env []string, args ...string) taskapiProcess {
	t.Helper()
	p := newProcess(program, args...)
	p.Env = append(p.Env, env...)
	must.OK(t, p.Start())
	return p
}

// newProcess returns a process that has not been started.
func newProcess(program string, args ...string) taskapiProcess {
	p := taskapiProcess{exec.Command(program, args...), new(polltest.Log)}
	p.Env = append(os.Environ(), "TASKAPI_TEST_MAIN=1")
	p.Stdout, p.Stderr = p.out, p.out
	p.WaitDelay = deadline // for the output, which a process that it left behind may hold
	return p
}

// Wait returns how the process has ended. One that does not end by itself is killed: that is the error then, and not a
// test that hangs.
func (p taskapiProcess) Wait() error {
	overdue := time.AfterFunc(2*deadline, func() { _ = p.Process.Kill() }) // it may have ended
	err := p.Cmd.Wait()
	if !overdue.Stop() {
		return fmt.Errorf("it did not end within %v: %w", 2*deadline, err)
	}
	return err
}

// until waits for something that a process brings about.
func until(t *testing.T, p taskapiProcess, what string, ok func() bool) {
	t.Helper()
	if !polltest.Until(ok) {
		t.Fatalf("never %s:\n%s", what, p.out)
	}
}

// alive reports that the process, its number read from a file, runs. One that has ended may wait for long to be reaped
// where PID 1 does not do it.
func alive(pid []byte) bool {
	stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// written reports that a file has a whole line.
func written(path string) bool {
	data, err := os.ReadFile(path)
	return err == nil && strings.HasSuffix(string(data), "\n")
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	return string(must.Read(t, path))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestTasksSurviveAKill kills taskapi twice: the same processes go on, no line of output is lost, what ended meanwhile
// is known with its exit code, and what failed meanwhile is restarted by its policy.
func TestTasksSurviveAKill(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file := jobFile(t, survivorJob)
	alloc := datadir.Dir(dir).Alloc(testAllocID)
	path := func(parts ...string) string { return filepath.Join(append([]string{alloc}, parts...)...) }

	first := startProcess(t, dir, file)
	until(t, first, "both run", func() bool {
		return strings.Count(first.out.String(), " Started") == 2 && written(path("counter", "local", "pid")) &&
			written(path("fails", "local", "runs"))
	})
	pid, _ := os.ReadFile(path("counter", "local", "pid"))
	port := shownPort(t, dir)
	kill(t, first)
	writeFile(t, path("fails", "local", "fail"), "")
	until(t, first, "the failing task has ended", func() bool { return !exists(path("fails", "local", "fail")) })

	second := startProcess(t, dir, file)
	until(t, second, "the failed task runs again", func() bool {
		runs, _ := os.ReadFile(path("fails", "local", "runs"))
		return string(runs) == "run\nrun\n"
	})
	until(t, second, "what happened is said", func() bool {
		out := second.out.String()
		return strings.Contains(out, "Resuming") && strings.Contains(out, "Exit Code: 3")
	})
	if now, _ := os.ReadFile(path("counter", "local", "pid")); string(now) != string(pid) || !alive(pid) {
		t.Errorf("the task is another process: %s, was %s", now, pid)
	}
	if got := shownPort(t, dir); got != port {
		t.Errorf("port %d, was %d", got, port)
	}
	until(t, second, "the task's socket answers to its token", func() bool { return taskAsks(alloc, "counter") == nil })
	kill(t, second)
	untilCounted(t, second, path("alloc", "logs", "counter.stdout.0"))
	writeFile(t, path("counter", "local", "stop"), "")
	until(t, second, "the counter has ended", func() bool { return !alive(pid) })

	third := startProcess(t, dir, file)
	until(t, third, "the end of the counter is known", func() bool {
		return strings.Contains(third.out.String(), "Exit Code: 0")
	})
	writeFile(t, path("fails", "local", "fail"), "") // now its restarts are used up
	var exit *exec.ExitError
	if err := third.Wait(); !errors.As(err, &exit) || exit.ExitCode() != base.ExitFailed {
		t.Errorf("got %v, want exit code 1:\n%s", err, third.out)
	}
	wantWholeOutput(t, path("alloc", "logs", "counter.stdout.0"))
	if out := taskapi(t, "status", "--data-dir", dir, testAllocID[:4]); !strings.Contains(out,
		`Task "counter": complete (0), 0 restarts`) || !strings.Contains(out, `Task "fails": failed (3), 1 restart`) {
		t.Errorf("status:\n%s", out)
	}
}

func kill(t *testing.T, p taskapiProcess) {
	t.Helper()
	must.OK(t, p.Process.Kill())
	_ = p.Wait() // killed
}

// taskAsks has a task's token tried on its socket.
func taskAsks(alloc, task string) error {
	client, err := taskOf(alloc, task)
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = client.Status().Leader()
	return err
}

// shownPort returns the port that status shows.
func shownPort(t *testing.T, dataDir string) int {
	t.Helper()
	_, rest, ok := strings.Cut(taskapi(t, "status", "--data-dir", dataDir, testAllocID), "127.0.0.1:")
	port, err := strconv.Atoi(strings.SplitN(rest, "\n", 2)[0])
	if !ok || err != nil {
		t.Fatalf("no port: %v", err)
	}
	return port
}

// wantWholeOutput holds that the lines 1, 2, 3 ... are all there.
func wantWholeOutput(t *testing.T, path string) {
	t.Helper()
	f := must.Get(os.Open(path))(t)
	defer f.Close()
	n := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if n++; lines.Text() != strconv.Itoa(n) {
			t.Fatalf("line %d is %q", n, lines.Text())
		}
	}
	if n < manyLines {
		t.Errorf("%d lines", n)
	}
}

// manyLines is how long a task has to count for its output to be of interest.
const manyLines = 10

// untilCounted waits until a task has counted for long enough.
func untilCounted(t *testing.T, p taskapiProcess, path string) {
	t.Helper()
	until(t, p, "enough is counted", func() bool { return countLines(path) >= manyLines })
}

// processesOf lists the processes that belong to a data directory, by their environment or, the keepers, by their log.
func processesOf(t *testing.T, dataDir string) []string {
	t.Helper()
	var found []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		env, _ := os.ReadFile(filepath.Join(dir, "environ"))
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		log, _ := os.Readlink(filepath.Join(dir, "fd", "2"))
		if strings.Contains(string(env), "NOMAD_ALLOC_DIR="+dataDir+"/") ||
			strings.HasPrefix(string(args), "taskapi\x00keeper\x00") && strings.HasPrefix(log, dataDir+"/") {
			found = append(found, fmt.Sprintf("%s %s", filepath.Base(dir), strings.ReplaceAll(string(args), "\x00", " ")))
		}
	}
	slices.Sort(found)
	return found
}

// TestSameIDElsewhere kills a keeper: its tasks end with it, and are started again by their policy. Those of an
// allocation with the same ID in another data directory run on.
func TestSameIDElsewhere(t *testing.T) {
	t.Parallel()
	file := jobFile(t, survivorJob)
	bystander, victim := shortDir(t), shortDir(t)
	processes := map[string]taskapiProcess{bystander: startProcess(t, bystander, file),
		victim: startProcess(t, victim, file)}
	pidFile := func(dir string) string {
		return filepath.Join(datadir.Dir(dir).Alloc(testAllocID), "counter", "local", "pid")
	}
	for dir, p := range processes {
		until(t, p, "it runs", func() bool { return written(pidFile(dir)) && strings.Count(p.out.String(), " Started") == 2 })
	}
	pid, killed := must.Read(t, pidFile(bystander)), must.Read(t, pidFile(victim))
	killKeeper(t, victim)
	until(t, processes[victim], "both run again", func() bool {
		return strings.Count(processes[victim].out.String(), " Started") == 4
	})
	if alive(killed) {
		t.Errorf("process %s of the killed keeper is still there", killed)
	}
	if !alive(pid) || strings.Contains(processes[bystander].out.String(), "Terminated") {
		t.Errorf("the other allocation's tasks were killed:\n%s", processes[bystander].out)
	}
	for _, p := range processes {
		must.OK(t, p.Process.Signal(syscall.SIGTERM))
		if err := p.Wait(); err != nil {
			t.Errorf("stopped: %v\n%s", err, p.out)
		}
	}
}

// killKeeper kills the keepers of a data directory, or of an allocation's directory, and returns how many there were.
func killKeeper(t *testing.T, dir string) (killed int) {
	t.Helper()
	for _, line := range processesOf(t, dir) {
		pid, args, _ := strings.Cut(line, " ")
		if !strings.HasPrefix(args, "taskapi keeper ") {
			continue
		}
		switch err := syscall.Kill(atoi(pid), syscall.SIGKILL); {
		case err == nil:
			killed++
		case !errors.Is(err, syscall.ESRCH): // it may have ended
			t.Fatal(err)
		}
	}
	return killed
}
