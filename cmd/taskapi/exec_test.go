package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/charmbracelet/x/term"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/cmd/taskapi/internal/cli"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// execJob is a task that may run commands, by execPolicy, and one that may not.
const execJob = `
job "demo" {
  group "web" {
    task "server" {
      driver = "raw_exec"
      identity {
        env  = true
        file = true
      }
      config {
        command = "/bin/sleep"
        args    = ["100000"]
      }
      env {
        WHO = "the server"
      }
      action "greet" {
        command = "/bin/sh"
        args    = ["-c", "echo hello from $WHO in $0; exit 3", "${NOMAD_TASK_NAME}"]
      }
    }
    task "other" {
      driver = "raw_exec"
      identity {
        file = true
      }
      config {
        command = "/bin/sleep"
        args    = ["100000"]
      }
    }
  }
}
`

const execPolicy = "task \"server\" {\n  capabilities = [\"alloc-exec\"]\n}\n"

// sdkExec runs a command with the SDK.
func sdkExec(t *testing.T, client *api.Client, task string, stdin io.Reader,
	command ...string) (out, errs string, code int, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	alloc := &api.Allocation{ID: testAllocID, NodeID: testAllocID}
	code, err = client.Allocations().Exec(t.Context(), alloc, task, false, command, stdin, &stdout, &stderr, nil, nil)
	return stdout.String(), stderr.String(), code, err
}

// TestExecSDK runs commands and actions with the official SDK, as the operator and as a task that a policy lets.
func TestExecSDK(t *testing.T) {
	t.Parallel()
	policy := writeFile(t, filepath.Join(t.TempDir(), "policy.hcl"), execPolicy)
	r := startRun(t, shortDir(t), execJob, "-o", "allow_shared_user=true", "--policy", policy)
	operator := r.operator()
	input := make([]byte, 1<<20)
	_, _ = rand.Read(input)
	for name, client := range map[string]*api.Client{"operator": operator, "task": r.task()} {
		t.Run(name, func(t *testing.T) {
			out, errs, code, err := sdkExec(t, client, "server", strings.NewReader(""), "sh", "-c",
				`echo "$WHO"; pwd; echo no >&2; exit 7`)
			if want := "the server\n" + r.allocDir("server") + "\n"; out != want || errs != "no\n" || code != 7 || err != nil {
				t.Errorf("%q, %q, %d, %v", out, errs, code, err)
			}
			first, _, _, _ := sdkExec(t, client, "server", strings.NewReader(""), "sh", "-c", "echo $NOMAD_TOKEN")
			second, _, _, _ := sdkExec(t, client, "server", strings.NewReader(""), "sh", "-c", "echo $NOMAD_TOKEN")
			if len(second) < 100 || first == second {
				t.Errorf("a command's token is the process's, which may have expired: %q, %q", first, second)
			}
			if out, _, code, err := sdkExec(t, client, "server", bytes.NewReader(input), "cat"); out != string(input) ||
				code != 0 || err != nil {
				t.Errorf("%d bytes of %d, %d, %v", len(out), len(input), code, err)
			}
			_, _, _, err = sdkExec(t, client, "server", strings.NewReader(""), "no-such-program")
			if unexpected, ok := errors.AsType[api.UnexpectedResponseError](err); !ok || unexpected.StatusCode() != 400 {
				t.Errorf("no such program: %v", err)
			}
			var stdout bytes.Buffer
			sizes := make(chan api.TerminalSize, 1)
			sizes <- api.TerminalSize{Height: 31, Width: 99}
			alloc := &api.Allocation{ID: testAllocID, NodeID: testAllocID, TaskGroup: "web"}
			script := `while [ "$(stty size)" != "31 99" ]; do sleep 0.05; done; tty; exit 4`
			code, err = client.Allocations().Exec(t.Context(), alloc, "server", true, []string{"sh", "-c", script},
				strings.NewReader(""), &stdout, io.Discard, sizes, nil)
			if code != 4 || err != nil || !strings.Contains(stdout.String(), "/dev/pts/") {
				t.Errorf("terminal: %q, %d, %v", stdout.String(), code, err)
			}
			stdout.Reset()
			code, err = client.Jobs().ActionExec(t.Context(), alloc, "demo", "server", false, nil, "greet",
				strings.NewReader(""), &stdout, io.Discard, nil, nil)
			if stdout.String() != "hello from the server in server\n" || code != 3 || err != nil {
				t.Errorf("action: %q, %d, %v", stdout.String(), code, err)
			}
		})
	}
	var actions []map[string]any
	_, err := operator.Raw().Query("/v1/job/demo/actions", &actions, nil)
	want := []map[string]any{{
		"Name": "greet", "Command": "/bin/sh", "Args": []any{"-c",
			"echo hello from $WHO in $0; exit 3", "${NOMAD_TASK_NAME}"}, "TaskName": "server", "TaskGroupName": "web",
	}}
	if err != nil || !reflect.DeepEqual(actions, want) {
		t.Errorf("got %v, %v; want %v", actions, err, want)
	}
}

// TestExecSaysHowATaskIsNamed where the words without "--" are read otherwise than meant.
func TestExecSaysHowATaskIsNamed(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	r := startRun(t, dir, execJob)
	r.eventually("running", func() bool { return strings.Contains(r.stdout.String(), "server      Started") })
	for _, words := range []string{"demo server no-such-program -x", "server no-such", "nobody ls"} {
		var out, errs bytes.Buffer
		code := cli.Run(t.Context(), append([]string{"exec", "--data-dir", dir}, strings.Fields(words)...),
			testEnvironment(&out, &errs))
		const want = "; -- stands before COMMAND: taskapi exec [flags] [ALLOC] [TASK] -- COMMAND [ARG]...\n"
		if !strings.HasSuffix(errs.String(), want) || code < base.ExitOwn || out.Len() > 0 {
			t.Errorf("%s: %q and exit code %d, want an error that ends with %q", words, errs.String(), code, want)
		}
	}
}

// TestExecEndsWithItsClient, and with taskapi when that is killed; the task goes on, and another taskapi runs commands
// in it again.
func TestExecEndsWithItsClient(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	file := jobFile(t, execJob)
	first := startProcess(t, dir, file)
	until(t, first, "both run", func() bool { return strings.Count(first.out.String(), " Started") == 2 })
	var tasks []int
	for pid, line := range belongingTo(dir) {
		if strings.Contains(line, "100000") {
			tasks = append(tasks, pid)
		}
	}

	session := func() (*exec.Cmd, string) {
		t.Helper()
		cmd := command(t, "exec", "--data-dir", dir, "server", "--", "sh", "-c", "sleep 100001 & echo $!; wait")
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		must.OK(t, err)
		pid := must.Get(bufio.NewReader(out).ReadString('\n'))(t)
		return cmd, pid
	}
	client, child := session()
	must.OK(t, client.Process.Kill())
	_ = client.Wait() // killed
	until(t, first, "the command of a client that was killed has ended", func() bool { return !alive([]byte(child)) })

	client, child = session()
	var said polltest.Log
	client.Stderr = &said
	kill(t, first)
	until(t, first, "the command has ended with taskapi", func() bool { return !alive([]byte(child)) })
	var exit *exec.ExitError
	if err := client.Wait(); !errors.As(err, &exit) || exit.ExitCode() != base.ExitOwn {
		t.Errorf("the client: %v, want exit code 125", err)
	}
	for _, pid := range tasks {
		if !alive([]byte(strconv.Itoa(pid))) || len(tasks) != 2 {
			t.Errorf("of the tasks, %v, %d has ended, too", tasks, pid)
		}
	}
	second := startProcess(t, dir, file)
	until(t, second, "commands run again", func() bool {
		var out, errs bytes.Buffer
		code := cli.Run(t.Context(), []string{"exec", "--data-dir", dir, "server", "--", "echo", "again"},
			testEnvironment(&out, &errs))
		return code == base.ExitOK && out.String() == "again\n"
	})
	taskapi(t, "stop", "--data-dir", dir)
	_ = second.Wait() // its tasks were killed by a signal, or not
}

// command returns this program as a process of its own.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), self(t), args...)
	cmd.Env = append(os.Environ(), "TASKAPI_TEST_MAIN=1", "TERM=xterm-256color")
	return cmd
}

// TestExecOnATerminal: the command has one of the same size, keys go to it, its exit code is this program's, and the
// terminal is as it was at the end, whatever that is.
func TestExecOnATerminal(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), execJob, "-o", "allow_shared_user=true")
	r.operator()
	window, programs := openTerminal(t)
	defer window.Close()
	defer programs.Close()
	resize := func(rows, columns uint16) {
		must.OK(t, unix.IoctlSetWinsize(int(window.Fd()), unix.TIOCSWINSZ,
			&unix.Winsize{Row: rows, Col: columns}))
	}
	before := must.Get(term.GetState(programs.Fd()))(t)
	screen := bufio.NewReader(window)
	expect := func(want string) {
		t.Helper()
		for {
			line, err := screen.ReadString('\n')
			if err != nil {
				t.Fatalf("%v before %q", err, want)
			}
			if strings.Contains(line, want) {
				return
			}
		}
	}
	keys := func(text string) {
		t.Helper()
		must.Get(window.WriteString(text))(t)
	}
	const script = `trap 'echo "size $(stty size)"' WINCH; trap 'echo interrupted' INT; echo "ready $TERM"; ` +
		`while [ ! -e leave ]; do sleep 0.05; done; rm leave; exit 9`
	for _, tc := range []struct {
		name string
		end  func(cmd *exec.Cmd)
		code int
	}{
		{"by itself", func(*exec.Cmd) { writeFile(t, r.allocDir("server", "leave"), "") }, 9},
		{"by the escape", func(*exec.Cmd) { keys("\r~.") }, base.ExitOwn},
		{"by a signal", func(cmd *exec.Cmd) { _ = cmd.Process.Signal(syscall.SIGTERM) }, 130},
		{"with the task", func(*exec.Cmd) { _ = r.operatorRestart() }, base.ExitOwn},
	} {
		t.Run(tc.name, func(t *testing.T) {
			resize(30, 90)
			cmd := command(t, "exec", "--data-dir", string(r.layout), "server", "--", "sh", "-c", script)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = programs, programs, programs
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			must.OK(t, cmd.Start())
			expect("ready xterm-256color")
			resize(41, 101)
			expect("size 41 101")
			keys("\x03")
			expect("interrupted")
			tc.end(cmd)
			drained := make(chan struct{})
			go func() { // the rest, so that nobody waits for the window
				defer close(drained)
				expect("the end of " + tc.name)
			}()
			_ = cmd.Wait() // its exit code is below
			if code := cmd.ProcessState.ExitCode(); code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			after, err := term.GetState(programs.Fd())
			if err != nil || !reflect.DeepEqual(after, before) {
				t.Errorf("the terminal is %+v, %v; want %+v", after, err, before)
			}
			must.Get(programs.WriteString("the end of " + tc.name + "\n"))(t)
			<-drained
		})
	}
}

// operatorRestart restarts the task, and with it what runs beside it.
func (r *running) operatorRestart() error {
	operator := r.client(r.layout.OperatorSocket(testAllocID), r.file("operator.token"))
	return operator.Allocations().Restart(&api.Allocation{ID: testAllocID, NodeID: testAllocID}, "server", nil)
}
