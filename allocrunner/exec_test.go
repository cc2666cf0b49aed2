package allocrunner_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// exec starts a script in the task t, with more before it.
func (r *running) exec(tty bool, script string) interfaces.ExecSession {
	r.t.Helper()
	s, err := r.runner.Exec(r.t.Context(), interfaces.ExecRequest{Task: "t", Command: []string{"/bin/sh", "-c", script},
		TTY: tty})
	must.OK(r.t, err)
	r.t.Cleanup(func() { s.Close() })
	return s
}

// whole reads a session's outputs to their ends, and returns the exit code.
func whole(t *testing.T, s interfaces.ExecSession) (out, errs string, code int) {
	t.Helper()
	var reading sync.WaitGroup
	var o, e []byte
	reading.Go(func() { o, _ = io.ReadAll(s.Stdout()) })
	reading.Go(func() { e, _ = io.ReadAll(s.Stderr()) })
	reading.Wait()
	exit := must.Get(s.Wait())(t)
	return string(o), string(e), exit.ExitCode
}

// gonePID waits until a process is no more.
func gonePID(t *testing.T, pid int) {
	t.Helper()
	for proctest.Alive(pid) {
		proctest.Pause()
	}
}

func sleeping(edits ...func(*api.Task)) *api.Task { return shell("t", "exec sleep 1000", edits...) }

// TestExec has the task's directory, environment and cgroup, with what it reads and writes as it comes.
func TestExec(t *testing.T) {
	r := run(t, "service", sleeping(func(task *api.Task) { task.Env = map[string]string{"MINE": "${NOMAD_TASK_NAME}!"} }))
	r.untilState("t", "running")
	s := r.exec(false,
		`pwd; echo "$MINE"; cat /proc/self/cgroup; echo no >&2; read -r line; echo "got $line"; cat >/dev/null; exit 7`)
	must.Get(io.WriteString(s.Stdin(), "hello\n"))(t)
	must.OK(t, s.Stdin().Close())
	out, errs, code := whole(t, s)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != 7 || errs != "no\n" || lines[0] != filepath.Join(r.dir, "t") || lines[1] != "t!" ||
		lines[len(lines)-1] != "got hello" {
		t.Errorf("code %d, %q, %q", code, out, errs)
	}
	if strings.Contains(out, "taskapi") && !strings.Contains(out, "/task.t/exec.") {
		t.Errorf("%q: not in the task's cgroup", out)
	}
	same.Error(t, nil, s.Resize(10, 20), "a size without a terminal")
}

// TestExecOfAnotherUser can open its own output by name.
func TestExecOfAnotherUser(t *testing.T) {
	proctest.NeedRoot(t)
	r := runWith(t, "service", func(_ *api.TaskGroup, cfg *interfaces.Config) {
		for dir := filepath.Dir(cfg.Dir); dir != os.TempDir(); dir = filepath.Dir(dir) { // the user gets in
			must.OK(t, os.Chmod(dir, 0o755))
		}
	}, sleeping(func(task *api.Task) { task.User = "nobody" }))
	r.untilState("t", "running")
	for _, tty := range []bool{false, true} {
		out, errs, code := whole(t, r.exec(tty, `id -un; echo more >/dev/stdout; head -c 0 /dev/stdin </dev/null`))
		if strings.Fields(out)[0] != "nobody" || !strings.Contains(out, "more") || code != 0 || errs != "" {
			t.Errorf("terminal %v: %q, %q, %d", tty, out, errs, code)
		}
	}
}

// TestExecCopiesBytes: all of them, in both directions, more than pipes hold, and none is a byte of the transport's.
func TestExecCopiesBytes(t *testing.T) {
	r := run(t, "service", sleeping())
	r.untilState("t", "running")
	want := make([]byte, 3<<20)
	_, _ = rand.Read(want)
	s := r.exec(false, "exec cat")
	var writing sync.WaitGroup
	writing.Go(func() {
		if _, err := s.Stdin().Write(want); err != nil {
			t.Error(err)
		}
		s.Stdin().Close()
	})
	got, _, code := whole(t, s)
	writing.Wait()
	if !bytes.Equal([]byte(got), want) || code != 0 {
		t.Errorf("%d bytes of %d, code %d", len(got), len(want), code)
	}
}

// TestExecOutputAfterTheEnd is read whole, also when something that was left in the background still had the other end.
func TestExecOutputAfterTheEnd(t *testing.T) {
	r := run(t, "service", sleeping())
	r.untilState("t", "running")
	for _, tty := range []bool{false, true} {
		s := r.exec(tty, `sleep 1000 & setsid sleep 1000 & head -c 3000 /dev/zero | tr '\0' x; exit 3`)
		exit, err := s.Wait()
		if err != nil || exit.ExitCode != 3 {
			t.Errorf("%+v, %v", exit, err)
		}
		if out, err := io.ReadAll(s.Stdout()); len(out) != 3000 || err != nil {
			t.Errorf("terminal %v: %d bytes, %v", tty, len(out), err)
		}
	}
}

// TestExecWithATerminal has its size, its type, its end of input, and its signals.
func TestExecWithATerminal(t *testing.T) {
	r := run(t, "service", sleeping())
	r.untilState("t", "running")
	s := r.exec(true, `stty -echo; trap 'stty size' WINCH; trap 'echo interrupted; over=1' INT; echo "$TERM"; stty `+
		`size; cat; `+
		`while [ -z "$over" ]; do sleep 0.05; done; while read -r x; do :; done; echo "left $x"; exit 5`)
	lines := bufio.NewReader(s.Stdout())
	expect := func(want ...string) {
		t.Helper()
		for _, want := range want {
			if line := proctest.ReadLine(t, lines); line != want {
				t.Fatalf("%q, want %q", line, want)
			}
		}
	}
	write := func(text string) {
		t.Helper()
		must.Get(io.WriteString(s.Stdin(), text))(t)
	}
	expect("xterm", "24 80")
	write("by cat\n\x04") // the terminal's end of the file is cat's, not the session's
	expect("by cat")
	must.OK(t, s.Resize(33, 111))
	expect("33 111")
	write("\x03")
	expect("interrupted")
	write("half a line")
	if err := s.Stdin().Close(); err != nil { // which is sent, and then the end
		t.Fatal(err)
	}
	out, _ := io.ReadAll(lines)
	if exit, err := s.Wait(); err != nil || exit.ExitCode != 5 || strings.TrimSpace(string(out)) != "left half a line" {
		t.Errorf("%q, %+v, %v", out, exit, err)
	}
	same.Fails(t, same.Err(s.Stdin().Write([]byte("x"))), "input after its end")
}

// TestExecErrors come before anything runs, and each says what is wrong.
func TestExecErrors(t *testing.T) {
	r := run(t, "batch", sleeping(), shell("over", "exit 0", lifecycle("prestart", false)))
	r.untilState("t", "running")
	plain := filepath.Join(r.dir, "t", "plain")
	must.OK(t, os.WriteFile(plain, []byte("neither\n"), 0o644))
	var command *interfaces.ExecError
	for name, tc := range map[string]struct {
		task    string
		command []string
		want    error
		words   string
	}{
		"no such task":     {"x", []string{"true"}, interfaces.ErrTaskNotFound, "task not found"},
		"a dead task":      {"over", []string{"true"}, interfaces.ErrTaskNotRunning, "task not running"},
		"no command":       {"t", nil, nil, "command is not present"},
		"an empty command": {"t", []string{""}, nil, `command "" can't name a program`},
		"no program":       {"t", []string{"no-such-program"}, nil, `command "no-such-program" was not found`},
		"no such path":     {"t", []string{"/no/such"}, nil, `program "/no/such" does not exist`},
		"no program file":  {"t", []string{"/etc/passwd"}, nil, "chmod +x it"},
		"a NUL byte":       {"t", []string{"echo", "a\x00b"}, nil, "NUL byte"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := r.runner.Exec(t.Context(), interfaces.ExecRequest{Task: tc.task, Command: tc.command})
			if tc.want != nil && !errors.Is(err, tc.want) || tc.want == nil && !errors.As(err, &command) ||
				!strings.Contains(err.Error(), tc.words) {
				t.Errorf("%v, want %q", err, tc.words)
			}
		})
	}
}

// TestExecClose ends the program and all that it has started. One with a terminal gets a SIGHUP first. No descriptor is
// left.
func TestExecClose(t *testing.T) {
	r := run(t, "service", sleeping())
	r.untilState("t", "running")
	fifo := proctest.Fifo(t, r.dir)
	descriptors := func() int { return len(must.Get(os.ReadDir("/proc/self/fd"))(t)) }
	before := descriptors()
	for _, tty := range []bool{false, true} {
		s := r.exec(tty, `trap 'echo hung up >'`+r.dir+
			`/fifo HUP; sleep 1000 & echo $!; echo $$; while :; do sleep 0.05; done`)
		lines := bufio.NewReader(s.Stdout())
		child, program := proctest.ReadPID(t, lines), proctest.ReadPID(t, lines)
		must.OK(t, s.Close())
		if tty {
			same.As(t, "hung up", proctest.ReadLine(t, fifo))
		}
		gonePID(t, child)
		gonePID(t, program)
		if n, err := s.Stdout().Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("read after Close: %d, %v", n, err)
		}
	}
	for descriptors() > before { // the runner's own come and go
		proctest.Pause()
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := must.Get(r.runner.Exec(ctx,
		interfaces.ExecRequest{Task: "t", Command: []string{"sh", "-c", "echo $$; exec sleep 1000"}}))(t)
	defer s.Close()
	program := proctest.ReadPID(t, bufio.NewReader(s.Stdout()))
	cancel()
	gonePID(t, program)
	same.Fails(t, same.Err(s.Wait()), "no error though its context ended")
}

// TestExecEndsWithTheTask, and with the runner.
func TestExecEndsWithTheTask(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(r *running)
		want error
	}{
		"task":   {func(r *running) { _ = r.runner.RestartTask(t.Context(), "t") }, interfaces.ErrTaskNotRunning},
		"stop":   {func(r *running) { r.stop() }, interfaces.ErrTaskNotRunning},
		"detach": {func(r *running) { r.runner.Detach() }, interfaces.ErrDetached},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, "service", sleeping())
			r.untilState("t", "running")
			s := r.exec(false, `trap "" TERM INT; sleep 1000 & echo $!; echo $$; wait`)
			lines := bufio.NewReader(s.Stdout())
			child, program := proctest.ReadPID(t, lines), proctest.ReadPID(t, lines)
			tc.end(r)
			if exit, err := s.Wait(); !errors.Is(err, tc.want) {
				t.Errorf("%+v, %v; want %v", exit, err, tc.want)
			}
			gonePID(t, child)
			gonePID(t, program)
			if name == "detach" {
				same.Error(t, interfaces.ErrDetached, r.end())
				must.Get(allocrunner.KillOrphans(context.Background(), r.dir))(t)
			}
		})
	}
}
