package keeper_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/keeper"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestALostKeeper is noticed at once: what it left running is killed before anybody hears of the end of the task, which
// says so.
func TestALostKeeper(t *testing.T) {
	dir := t.TempDir()
	cfg := supervised(dir)
	cfg.Unused = true // which says nothing of the keepers that follow
	s := superviseAs(t, cfg)
	fifo := proctest.Fifo(t, dir)
	for range 2 { // a new keeper may be lost, too
		calm := run(t, s, script(dir, "calm", "exec sleep 1000"))
		status := run(t, s, script(dir, "wild", `setsid sh -c 'echo $$ >$FIFO; exec sleep 1000' & exec sleep 1000`))
		child := proctest.ReadPID(t, fifo)
		waited := make(chan error, 2)
		for _, task := range []string{"calm", "wild"} {
			go func() {
				_, err := s.Wait(t.Context(), task)
				if proctest.Alive(child) || proctest.Alive(status.PID) {
					t.Errorf("%s: processes of the lost keeper still run", task)
				}
				waited <- err
			}()
		}
		must.OK(t, unix.Kill(s.Keeper().PID, unix.SIGKILL))
		said := []string{}
		for range 2 {
			err := <-waited
			same.Error(t, drivers.ErrLost, err, "wait")
			said = append(said, err.Error())
		}
		all := strings.Join(said, "\n")
		if !strings.Contains(all, "the keeper was killed, and the task with it; 1 more of its processes had to be ended") ||
			strings.Count(all, "more of its processes") != 1 {
			t.Errorf("said: %s", all)
		}
		for id, want := range map[drivers.ProcessID]int{calm.ID(): 0, status.ID(): 1} {
			task := id.Task
			if n, err := s.KillTree(t.Context(), id); n != want || err != nil {
				t.Errorf("%s: %d left over, %v; want %d", task, n, err, want)
			}
			if n, err := s.KillTree(t.Context(), id); n != 0 || err != nil {
				t.Errorf("%s: %d left over the second time, %v", task, n, err)
			}
		}
	}
	run(t, s, script(dir, "calm", "exit 3"))
	same.As(t, 3, must.Get(s.Wait(t.Context(), "calm"))(t).ExitCode)
	if exit, err := s.Wait(t.Context(), "wild"); err != nil || exit.ExitCode != -1 ||
		!strings.Contains(exit.Err, "the keeper was killed") {
		t.Errorf("wait for a task that only the lost keeper had: %+v, %v", exit, err)
	}
}

// TestALostKeeperHadWrittenDown how a task ended: nobody had read it yet.
func TestALostKeeperHadWrittenDown(t *testing.T) {
	dir := t.TempDir()
	s := supervise(t, dir)
	run(t, s, script(dir, "t", "exit 3"))
	if exit, err := s.Wait(t.Context(), "t"); err != nil || exit.ExitCode != 3 {
		t.Fatalf("%+v, %v", exit, err)
	}
	for last, err := keeper.Last(dir); err != nil || last.Tasks[0].Exit == nil; last, err = keeper.Last(dir) {
		unix.Poll(nil, 1) // the keeper writes by itself
	}
	must.OK(t, unix.Kill(s.Keeper().PID, unix.SIGKILL))
	<-s.Settled()
	if exit, err := s.Wait(t.Context(), "t"); err != nil || exit.ExitCode != 3 {
		t.Errorf("%+v, %v; want the code that was written down", exit, err)
	}
}

// TestAnEarlierKeepersRecord says nothing of a later one that was lost and could not write its own: neither that a task
// has ended well, nor that nothing is left running.
func TestAnEarlierKeepersRecord(t *testing.T) {
	for _, stays := range []bool{false, true} { // when it can't be removed
		dir := t.TempDir()
		record := filepath.Join(dir, "keeper.json")
		first := supervise(t, dir)
		run(t, first, script(dir, "t", "exit 0"))
		must.Get(first.Wait(t.Context(), "t"))(t)
		must.OK(t, first.Detach())
		for id := first.Keeper(); id.Runs(); unix.Poll(nil, 2) { // the client may not be missed yet by the first
			unix.Kill(id.PID, unix.SIGTERM)
		}
		old, err := os.ReadFile(record)
		if err != nil || !strings.Contains(string(old), `"ExitCode":0`) {
			t.Fatalf("%s, %v", old, err)
		}
		if err := os.MkdirAll(record+".new/full", 0o755); err != nil { // as a full disk
			t.Fatal(err)
		}
		s := supervise(t, dir)
		fifo := proctest.Fifo(t, dir)
		status := run(t, s, script(dir, "t", `setsid sh -c 'echo $$ >$FIFO; exec sleep 1000' & exec sleep 1000`))
		child := proctest.ReadPID(t, fifo)
		if stays {
			must.OK(t, os.WriteFile(record, old, 0o600))
		}
		must.OK(t, unix.Kill(s.Keeper().PID, unix.SIGKILL))
		exit, err := s.Wait(t.Context(), "t")
		same.Says(t, drivers.ErrLost, "what was found of the task was ended; 1 more", err, exit)
		if proctest.Alive(child) || proctest.Alive(status.PID) {
			t.Error("processes of the lost keeper still run")
		}
	}
}

// TestALostAnswer to a start does not have the task run twice, be it that the process has ended since, or that it went
// with its keeper. When the answer is lost is left to chance.
func TestALostAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		lose   func(t *testing.T, keeper int)
	}{
		"connection": {"exit 3", hangUp},
		"keeper": {`until read -r text <$DIR/keeper.json; case $text in *\"t\"*) true;; *) false;; esac; do :; done; kill ` +
			`-KILL $PPID; sleep 1000`,
			func(*testing.T, int) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 6 {
				dir := t.TempDir()
				s := supervise(t, dir)
				fifo := proctest.Fifo(t, dir)
				lost := make(chan struct{})
				go func() {
					defer close(lost)
					proctest.ReadLine(t, fifo)
					tc.lose(t, s.Keeper().PID)
				}()
				spec := script(dir, "t", "echo >>$DIR/runs; echo >$FIFO; "+tc.script)
				spec.Env = append(spec.Env, "DIR="+dir)
				run(t, s, spec)
				<-lost
				if exit, err := s.Wait(t.Context(), "t"); err == nil && exit.ExitCode != 3 && exit.ExitCode != -1 {
					t.Errorf("%+v", exit)
				}
				if runs, err := os.ReadFile(filepath.Join(dir, "runs")); err != nil || len(runs) != 1 {
					t.Fatalf("%d runs, %v", len(runs), err)
				}
			}
		})
	}
}

// TestAFreshAllocation in a directory of another one has nothing of that one's processes; one that goes on has all of
// them.
func TestAFreshAllocation(t *testing.T) {
	dir := t.TempDir()
	s := supervise(t, dir)
	status := run(t, s, script(dir, "t", "exec sleep 1000"))
	must.OK(t, s.Detach())
	s, err := keeper.Supervise(t.Context(), supervised(dir), false)
	if known, _ := s.Found(status.Task); err != nil || known.PID != status.PID {
		t.Fatalf("%+v, %v", known, err)
	}
	must.OK(t, s.Detach())
	s, err = keeper.Supervise(t.Context(), supervised(dir), true)
	if _, known := s.Found(status.Task); err != nil || known || proctest.Alive(status.PID) {
		t.Fatalf("%v, %v; want a new keeper, and the old process gone", known, err)
	}
	must.OK(t, s.Close())
}

// TestABrokenConnection to a keeper that lives is made again, and nobody notices.
func TestABrokenConnection(t *testing.T) {
	dir := t.TempDir()
	s, fifo := supervise(t, dir), proctest.Fifo(t, dir)
	status := run(t, s, script(dir, "t", `trap "exit 4" USR1; echo >$FIFO; while :; do sleep 0.05; done`))
	proctest.ReadLine(t, fifo)
	type result struct {
		code int
		err  error
	}
	waited := make(chan result, 1)
	go func() {
		exit, err := s.Wait(t.Context(), "t")
		waited <- result{exit.ExitCode, err}
	}()
	first := s.Keeper()
	for range 3 {
		hangUp(t, first.PID)
		if list, err := s.List(t.Context()); err != nil || len(list) != 1 || list[0].PID != status.PID ||
			list[0].Exit != nil {
			t.Fatalf("%+v, %v", list, err)
		}
	}
	same.As(t, first, s.Keeper(), "another keeper was made")
	must.OK(t, s.Signal(t.Context(), proctest.Latest(t, s, "t"), unix.SIGUSR1))
	if got := <-waited; got != (result{code: 4}) {
		t.Errorf("%+v", got)
	}
	if _, err := s.Exec(t.Context(),
		drivers.ExecSpec{Spec: drivers.Spec{Task: "t", Path: "/bin/true", Dir: "/"}}); !errors.Is(
		err, drivers.ErrNotRunning) {
		t.Errorf("exec: %v", err)
	}
}

// said is a log that hands on the messages that hold a text.
type said struct {
	slog.Handler
	text  string
	heard chan string
}

func (s said) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, s.text) {
		select {
		case s.heard <- r.Message:
		default:
		}
	}
	return nil
}

func (s said) Enabled(context.Context, slog.Level) bool { return true }

// TestAFrozenKeeper to which the connection breaks is neither taken for lost, nor is anything forgotten that was
// requested of it: its tasks run on, their ends are reported, and a start that was given up meanwhile leaves nothing
// behind.
func TestAFrozenKeeper(t *testing.T) {
	dir := t.TempDir()
	log := said{slog.DiscardHandler, "neither answers nor", make(chan string, 1)}
	cfg := supervised(dir)
	cfg.Logger = slog.New(log)
	s := superviseAs(t, cfg)
	run(t, s, script(dir, "t", `trap "exit 4" USR1; while :; do sleep 0.05; done`))
	pid := s.Keeper().PID
	waited := make(chan error, 1)
	go func() {
		exit, err := s.Wait(t.Context(), "t")
		if err == nil && exit.ExitCode != 4 {
			err = fmt.Errorf("exit code %d", exit.ExitCode)
		}
		waited <- err
	}()
	freeze(t, pid) // whole: a thread that still runs could take the next connection, and the keeper would not be silent
	defer unix.Kill(pid, unix.SIGCONT)
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan error, 1)
	go func() {
		_, err := s.Start(ctx, script(dir, "given-up", "exec sleep 1000"))
		started <- err
	}()
	cancel()
	hangUp(t, pid)
	select {
	case err := <-waited:
		t.Errorf("the task that runs: %v", err)
	case <-log.heard:
	}
	must.OK(t, unix.Kill(pid, unix.SIGCONT))
	if err := <-started; err != nil { // else it is there, and the caller knows
		if list, err := s.List(t.Context()); err != nil || len(list) != 1 {
			t.Errorf("after a start that was given up: %+v, %v", list, err)
		}
	}
	must.OK(t, s.Signal(t.Context(), proctest.Latest(t, s, "t"), unix.SIGUSR1))
	must.OK(t, <-waited)
}

// TestALateRequest, which was sent to a frozen keeper and is sent again after its connection broke, does not reach the
// process that the task has got meanwhile.
func TestALateRequest(t *testing.T) {
	for name, request := range map[string]func(*keeper.Supervisor, drivers.ProcessID) error{
		"signal": func(s *keeper.Supervisor, id drivers.ProcessID) error {
			return s.Signal(t.Context(), id, unix.SIGKILL)
		},
		"kill": func(s *keeper.Supervisor, id drivers.ProcessID) error {
			_, err := s.KillTree(t.Context(), id)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := supervise(t, dir)
			first := run(t, s, script(dir, "t", "exec sleep 1000"))
			var next drivers.ProcessStatus
			// the restart comes before the repetition
			s.SetAttach(func(ctx context.Context, dir string) (*keeper.Client, error) {
				c, err := keeper.Attach(ctx, dir)
				if err == nil {
					_, err = c.Wait(ctx, "t")
				}
				if err == nil {
					next, err = c.Start(ctx, script(dir, "t", "exec sleep 1000"))
				}
				return c, err
			})
			pid := s.Keeper().PID
			freeze(t, pid)
			defer unix.Kill(pid, unix.SIGCONT)
			late := make(chan error, 1)
			go func() { late <- request(s, first.ID()) }()
			for unread(t, pid) == 0 {
				unix.Poll(nil, 2)
			}
			must.OK(t, unix.Kill(first.PID, unix.SIGKILL))
			hangUp(t, pid)
			must.OK(t, unix.Kill(pid, unix.SIGCONT))
			if err := <-late; !errors.Is(err, drivers.ErrNotRunning) {
				t.Errorf("a request for the process before: %v, want that it does not run", err)
			}
			if next.PID == 0 || !proctest.Alive(next.PID) {
				t.Errorf("the request reached the next process: %+v", next)
			}
		})
	}
}

// TestTasksWithoutACgroup are warned of once, not at each start.
func TestTasksWithoutACgroup(t *testing.T) {
	dir := t.TempDir()
	cfg := supervised(dir)
	var log bytes.Buffer
	cfg.Logger, cfg.NoCgroup = slog.New(slog.NewTextHandler(&log, nil)), true
	s := superviseAs(t, cfg)
	for _, task := range []string{"a", "b"} {
		if status := run(t, s, script(dir, task, "exit 0")); status.NoCgroup == "" {
			t.Errorf("%s: %+v", task, status)
		}
	}
	must.OK(t, s.Close())
	if n := strings.Count(log.String(), "runs in no cgroup"); n != 1 || !strings.Contains(log.String(), "task=a") {
		t.Errorf("said %d times: %s", n, log.String())
	}
}

// TestCloseEndsAKeeper with its tasks, whatever became of it before, and leaves nothing of it in the directory but its
// log.
func TestCloseEndsAKeeper(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, s *keeper.Supervisor, dir string){
		"its connection broke, and is not made again yet": func(t *testing.T, s *keeper.Supervisor, _ string) {
			s.BeginClose()
			hangUp(t, s.Keeper().PID)
			<-s.Settled()
		},
		"it was stopped": func(t *testing.T, s *keeper.Supervisor, _ string) {
			must.OK(t, unix.Kill(s.Keeper().PID, unix.SIGSTOP))
		},
		"it was killed while it wrote": func(t *testing.T, s *keeper.Supervisor, dir string) {
			must.OK(t, unix.Kill(s.Keeper().PID, unix.SIGKILL))
			<-s.Settled()
			must.OK(t, os.WriteFile(filepath.Join(dir, "keeper.json.new"), nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := supervise(t, dir)
			status := run(t, s, script(dir, "t", "exec sleep 1000"))
			before(t, s, dir)
			must.OK(t, s.Close())
			if s.Keeper().Runs() || proctest.Alive(status.PID) {
				t.Error("the keeper or its task still runs")
			}
			left, err := filepath.Glob(filepath.Join(dir, "keeper*"))
			if want := filepath.Join(dir, "keeper.log"); err != nil || len(left) != 1 || left[0] != want {
				t.Errorf("left: %v, %v; want %s alone", left, err, want)
			}
		})
	}
}

// TestCloseForcesAKeeper that does not answer, whatever it is sent.
func TestCloseForcesAKeeper(t *testing.T) {
	t.Parallel()
	freezer := newFreezer(t)
	dir := t.TempDir()
	s := supervise(t, dir)
	fifo := proctest.Fifo(t, dir)
	status := run(t, s, script(dir, "t", `setsid sh -c 'echo $$ >$FIFO; exec sleep 1000' & exec sleep 1000`))
	child := proctest.ReadPID(t, fifo)
	id := s.Keeper()
	for file, text := range map[string]string{"cgroup.procs": strconv.Itoa(id.PID), "cgroup.freeze": "1"} {
		must.OK(t, os.WriteFile(filepath.Join(freezer, file), []byte(text), 0))
	}
	must.OK(t, s.Close())
	if id.Runs() || proctest.Alive(child) || proctest.Alive(status.PID) {
		t.Error("the keeper or its task still runs")
	}
}

// TestReplacedByAnother: the latest to take the keeper over has it, and the one before neither makes another nor ends
// it.
func TestReplacedByAnother(t *testing.T) {
	dir := t.TempDir()
	first := supervise(t, dir)
	run(t, first, script(dir, "t", "exec sleep 1000"))
	second := supervise(t, dir)
	same.Error(t, keeper.ErrReplaced, same.Err(first.Wait(t.Context(), "t")), "wait")
	same.Error(t, keeper.ErrReplaced, same.Err(first.Start(t.Context(), script(dir, "u", "exit 0"))), "start")
	if list, err := second.List(t.Context()); err != nil || len(list) != 1 || list[0].Exit != nil {
		t.Errorf("%+v, %v", list, err)
	}
	must.OK(t, first.Detach())
}
