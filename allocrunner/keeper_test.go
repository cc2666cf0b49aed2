package allocrunner_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
)

// killKeeper kills the parent process of the tasks.
func (r *running) killKeeper() {
	r.t.Helper()
	var record struct{ Keeper struct{ PID int } }
	text, err := os.ReadFile(filepath.Join(r.dir, "keeper.json"))
	if err == nil {
		err = json.Unmarshal(text, &record)
	}
	if err == nil {
		err = syscall.Kill(record.Keeper.PID, syscall.SIGKILL)
	}
	must.OK(r.t, err)
}

// restarted runs a task that is restarted once. Each of its processes says its number.
func restarted(t *testing.T) *running {
	t.Helper()
	r := runWith(t, "service", func(g *api.TaskGroup, _ *interfaces.Config) {
		g.RestartPolicy.Attempts, g.RestartPolicy.Interval = new(1), new(time.Hour)
	}, shell("t", `echo $$; exec sleep 1000`))
	r.untilState("t", "running")
	return r
}

func (r *running) untilRestarted() {
	r.t.Helper()
	r.until("the task runs again", func(a *api.Allocation) bool {
		return a.TaskStates["t"].Restarts == 1 && a.TaskStates["t"].State == "running"
	})
}

// TestExecThroughAKilledKeeper: the sessions end with it, say why, and leave no process; the task's next process has
// others.
func TestExecThroughAKilledKeeper(t *testing.T) {
	r := restarted(t)
	sessions := map[interfaces.ExecSession][]int{}
	for _, tty := range []bool{false, true} {
		s := r.exec(tty, `trap "" HUP; setsid sleep 1000 & echo $!; echo $$; cat`)
		lines := bufio.NewReader(s.Stdout())
		sessions[s] = []int{proctest.ReadPID(t, lines), proctest.ReadPID(t, lines)}
	}
	r.killKeeper()
	for s, pids := range sessions {
		if exit, err := s.Wait(); !errors.Is(err, interfaces.ErrTaskNotRunning) ||
			!strings.Contains(err.Error(), "the keeper was killed") {
			t.Errorf("%+v, %v; want that the task does not run any more, and why", exit, err)
		}
		for _, pid := range pids {
			gonePID(t, pid)
		}
		if _, err := io.Copy(io.Discard, s.Stdout()); err != nil {
			t.Error(err)
		}
	}
	r.untilRestarted()
	if out, errs, code := whole(t, r.exec(false, "echo again; exit 3")); out != "again\n" || errs != "" || code != 3 {
		t.Errorf("%q, %q, %d", out, errs, code)
	}
}

// TestLogsThroughAKilledKeeper: a reader that follows gets what both processes have written, each line once.
func TestLogsThroughAKilledKeeper(t *testing.T) {
	r := restarted(t)
	r.untilLines("alloc/logs/t.stdout.0", 1)
	frames := must.Get(r.runner.Files(nil).Logs("t", "stdout", interfaces.Span{Follow: true}))(t)
	defer frames.Close()
	read, stop := context.WithTimeout(t.Context(), deadline)
	defer stop()
	var said strings.Builder
	for killed := false; strings.Count(said.String(), "\n") < 2; {
		frame, err := frames.Next(read)
		if err != nil {
			t.Fatalf("%v after %q", err, said.String())
		}
		said.Write(frame.Data)
		if !killed {
			killed = true
			r.killKeeper()
		}
	}
	r.untilRestarted()
	stop() // an ended context does not keep what is there
	if frame, err := frames.Next(read); !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v after %q", frame, err, said.String())
	}
	if lines := strings.Fields(said.String()); len(lines) != 2 || lines[0] == lines[1] {
		t.Errorf("%q, want one line of each process", lines)
	}
}

// TestAKeeperThatCantBeStarted is a failed attempt of the task, and the next one makes it good.
func TestAKeeperThatCantBeStarted(t *testing.T) {
	cfg := configure(t, "service", func(g *api.TaskGroup, _ *interfaces.Config) {
		g.RestartPolicy.Attempts, g.RestartPolicy.Interval = new(1), new(time.Hour)
	}, shell("t", "exec sleep 1000"))
	log := filepath.Join(cfg.Dir, "keeper.log")
	if err := os.MkdirAll(log, 0o700); err != nil { // where the keeper's file is to be
		t.Fatal(err)
	}
	cfg.OnEvent = func(_ string, e *api.TaskEvent) {
		if e.Type == api.TaskDriverFailure {
			if err := os.Remove(log); err != nil {
				t.Error(err)
			}
		}
	}
	r := begin(t, cfg)
	r.untilState("t", "running")
	r.wantEvents("t", "Received", "Task Setup", "Driver Failure", "Restarting", "Started")
	if e := event(r.runner.Alloc(), "t", api.TaskDriverFailure); e == nil || !strings.Contains(e.DisplayMessage, log) {
		t.Errorf("got %+v, want what was in the way named", e)
	}
}
