package keeper_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/keeper"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
	"taskapi/internal/proc"
	"taskapi/internal/same"
)

// begun is a keeper with a task and a child of that.
type begun struct {
	*keeper.Client
	task, child proc.Identity
}

func begin(t *testing.T, dir string) begun {
	t.Helper()
	c := start(t, keeper.Config{Dir: dir})
	fifo := proctest.Fifo(t, dir)
	status := run(t, c, shell(dir, "t", `setsid sh -c 'echo $$ >$FIFO; exec sleep 1000' & exec sleep 1000`))
	b := begun{c, identify(t, status.PID), identify(t, proctest.ReadPID(t, fifo))}
	// a process that executes a program has no environment for a moment
	for _, id := range []proc.Identity{b.task, b.child} {
		for comm := ""; comm != "sleep\n" || !proc.HasEnv(id.PID, mark(dir)); {
			unix.Poll(nil, 1) // another process's doing
			text := must.Read(t, fmt.Sprintf("/proc/%d/comm", id.PID))
			comm = string(text)
		}
	}
	return b
}

func (b begun) wantGone(t *testing.T) {
	t.Helper()
	for what, id := range map[string]proc.Identity{"keeper": b.Keeper(), "task": b.task, "child": b.child} {
		if id.Runs() {
			t.Errorf("the %s still runs", what)
		}
	}
}

func detach(t *testing.T, c *keeper.Client) {
	t.Helper()
	must.OK(t, c.Detach())
}

// wipe removes what is in the directory, or the directory and makes it again.
func wipe(t *testing.T, dir string, names ...string) {
	t.Helper()
	if len(names) == 0 {
		for os.RemoveAll(dir) != nil { // the keeper was just writing its record
		}
		must.OK(t, os.Mkdir(dir, 0o755))
	}
	for _, name := range names {
		must.OK(t, os.Remove(filepath.Join(dir, name)))
	}
}

// TestAWipedDirectory has no second copy of a task: the keeper that nobody can reach any more is ended first, and it is
// said.
func TestAWipedDirectory(t *testing.T) {
	for name, files := range map[string][]string{
		"all":               nil,
		"record and socket": {"keeper.json", "keeper.sock"},
		"socket":            {"keeper.sock"},
		"also the lock":     {"keeper.json", "keeper.sock", "keeper.log"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "alloc")
			wipe(t, dir)
			b := begin(t, dir)
			detach(t, b.Client)
			wipe(t, dir, files...)
			if !keeper.Busy(dir) {
				t.Error("the keeper is not found")
			}
			var said bytes.Buffer
			next, attached, err := keeper.Open(t.Context(),
				keeper.Config{Dir: dir, Marker: mark(dir), Logger: slog.New(slog.NewTextHandler(&said, nil))})
			if err != nil || attached {
				t.Fatal(attached, err)
			}
			closeLater(t, next)
			b.wantGone(t)
			if !strings.Contains(said.String(), "can't be reached has been ended") {
				t.Errorf("said: %s", said.String())
			}
			run(t, next, shell(dir, "t", "exit 0"))
			// the old keeper has not written its record over the new one's
			if again := attach(t, dir); again.Keeper() != next.Keeper() {
				t.Errorf("the record is of %v, want %v", again.Keeper(), next.Keeper())
			}
		})
	}
}

// TestAWipedDirectoryUnderItsClient hurts no task, and the keeper can be ended.
func TestAWipedDirectoryUnderItsClient(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "alloc")
	wipe(t, dir)
	b := begin(t, dir)
	wipe(t, dir)
	var said bytes.Buffer
	if _, _, err := keeper.Open(t.Context(), keeper.Config{Dir: dir, Marker: mark(dir),
		Logger: slog.New(slog.NewTextHandler(&said, nil))}); !errors.Is(err, keeper.ErrKeeperRuns) ||
		!strings.Contains(err.Error(), "stopped first") || said.Len() > 0 {
		t.Errorf("a second sidecar: %v; said: %s", err, said.String())
	}
	if _, err := keeper.End(t.Context(), keeper.Config{Dir: dir, Marker: mark(dir)}); !errors.Is(err,
		keeper.ErrKeeperRuns) {
		t.Errorf("end: %v", err)
	}
	if !b.task.Runs() || !b.child.Runs() {
		t.Fatal("the task was hurt")
	}
	spec := shell(dir, "u", "exit 5")
	spec.Logs.Disabled = true // its directory is gone
	run(t, b.Client, spec)
	same.As(t, 5, must.Get(b.Wait(t.Context(), "u"))(t).ExitCode)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("the keeper wrote into the new directory: %v, %v", entries, err)
	}
	must.OK(t, b.Close())
	b.wantGone(t)
}

// TestADamagedRecord loses nothing as long as the socket is there: the keeper is taken over, and writes another.
func TestADamagedRecord(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "torn": `{"Keeper":{"PID":1`, "garbage": "\x00\xff",
		"none": "-"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			b := begin(t, dir)
			detach(t, b.Client)
			wipe(t, dir, "keeper.json")
			if text != "-" {
				must.OK(t, os.WriteFile(filepath.Join(dir, "keeper.json"), []byte(text), 0o600))
			}
			next, attached, err := keeper.Open(t.Context(), keeper.Config{Dir: dir, Marker: mark(dir)})
			if err != nil || !attached || next.Keeper() != b.Keeper() {
				t.Fatalf("attached %v, %v", attached, err)
			}
			closeLater(t, next)
			if list, err := next.List(t.Context()); err != nil || len(list) != 1 || list[0].PID != b.task.PID ||
				list[0].Exit != nil {
				t.Errorf("%+v, %v", list, err)
			}
			run(t, next, shell(dir, "u", "exit 0"))
			if last, err := keeper.Last(dir); err != nil || last.Keeper != b.Keeper() || len(last.Tasks) != 2 {
				t.Errorf("record %+v, %v", last, err)
			}
		})
	}
}

// TestADamagedRecordOfAKilledKeeper: what it left is known by its environment.
func TestADamagedRecordOfAKilledKeeper(t *testing.T) {
	dir := t.TempDir()
	b := begin(t, dir)
	must.OK(t, unix.Kill(b.Keeper().PID, unix.SIGKILL))
	<-b.Done()
	gone(t, b.Keeper())
	must.OK(t, os.WriteFile(filepath.Join(dir, "keeper.json"), []byte("?"), 0o600))
	next, attached, err := keeper.Open(t.Context(), keeper.Config{Dir: dir, Marker: mark(dir)})
	if err != nil || attached {
		t.Fatal(attached, err)
	}
	closeLater(t, next)
	b.wantGone(t)
}

func TestEnd(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, dir string, b begun){
		"as it is":  func(*testing.T, string, begun) {},
		"wiped":     func(t *testing.T, dir string, _ begun) { wipe(t, dir) },
		"gone":      func(t *testing.T, dir string, _ begun) { wipe(t, dir); os.Remove(dir) },
		"no record": func(t *testing.T, dir string, _ begun) { wipe(t, dir, "keeper.json") },
		"stopped":   func(_ *testing.T, _ string, b begun) { unix.Kill(b.Keeper().PID, unix.SIGSTOP) },
		"killed before": func(t *testing.T, _ string, b begun) {
			unix.Kill(b.Keeper().PID, unix.SIGKILL)
			gone(t, b.Keeper())
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "alloc")
			wipe(t, dir)
			b := begin(t, dir)
			detach(t, b.Client)
			prepare(t, dir, b)
			if keeper.Busy(dir) != (name != "killed before") {
				t.Errorf("busy: %v", keeper.Busy(dir))
			}
			killed, err := keeper.End(t.Context(), keeper.Config{Dir: dir, Marker: mark(dir)})
			if err != nil || killed != 2 && name != "killed before" || killed < 1 {
				t.Errorf("%d killed, %v", killed, err)
			}
			b.wantGone(t)
			if keeper.Busy(dir) {
				t.Error("a task still runs")
			}
			same.As(t, 0, must.Get(keeper.End(t.Context(), keeper.Config{Dir: dir, Marker: mark(dir)}))(t), "the second time")
		})
	}
}

// TestSweepCounts who is left of which task, besides what the kernel kills with the keeper.
func TestSweepCounts(t *testing.T) {
	dir := t.TempDir()
	b := begin(t, dir)
	if _, err := keeper.Sweep(t.Context(), keeper.Config{Dir: dir, Marker: mark(dir)}); !errors.Is(err,
		keeper.ErrKeeperRuns) {
		t.Errorf("while the keeper runs: %v", err)
	}
	must.OK(t, unix.Kill(b.Keeper().PID, unix.SIGKILL))
	gone(t, b.Keeper())
	left, err := keeper.Sweep(t.Context(), keeper.Config{Dir: dir, Marker: mark(dir)})
	if err != nil || len(left) != 1 || left["t"] != 1 {
		t.Errorf("%v, %v", left, err)
	}
	b.wantGone(t)
}

// TestSearch finds a keeper, also by its arguments alone, and what a killed one has left.
func TestSearch(t *testing.T) {
	dir := t.TempDir()
	cfg := keeper.Config{Dir: dir, Marker: mark(dir)}
	want := func(when string, wantBusy, wantUnused bool) {
		t.Helper()
		if busy, unused := keeper.Search(cfg); busy != wantBusy || unused != wantUnused {
			t.Errorf("%s: busy %v, unused %v; want %v, %v", when, busy, unused, wantBusy, wantUnused)
		}
	}
	want("at first", false, true)
	b := begin(t, dir)
	want("with a task", true, false)
	wipe(t, dir)
	want("in a wiped directory", true, false)
	must.OK(t, b.Keeper().Signal(unix.SIGKILL))
	gone(t, b.Keeper())
	want("after the keeper was killed", false, false)
	must.Get(keeper.End(t.Context(), cfg))(t)
	want("in the end", false, true)
	b.wantGone(t)
}
