package allocrunner_test

import (
	"bufio"
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
		must.Get(io.Copy(io.Discard, s.Stdout()))(t)
	}
	r.untilRestarted()
	if out, errs, code := whole(t, r.exec(false, "echo again; exit 3")); out != "again\n" || errs != "" || code != 3 {
		t.Errorf("%q, %q, %d", out, errs, code)
	}
}
