package keeper_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/keeper"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestTheNextKeeperKnowsHowTasksEnded that an earlier one had: one that ended by itself, and one that was killed, with
// a task that ran.
func TestTheNextKeeperKnowsHowTasksEnded(t *testing.T) {
	dir := t.TempDir()
	first := start(t, keeper.Config{Dir: dir, Idle: time.Millisecond})
	six := run(t, first, shell(dir, "six", "exit 6"))
	must.Get(first.Wait(t.Context(), "six"))(t)
	id := first.Keeper()
	must.OK(t, first.Detach())
	gone(t, id)

	second := start(t, keeper.Config{Dir: dir})
	lost := run(t, second, shell(dir, "lost", "exec sleep 1000"))
	wantPast := func(c *keeper.Client, task string, was drivers.ProcessStatus, code int, reason string) {
		t.Helper()
		list, err := c.List(t.Context())
		found := false
		for _, s := range list {
			if s.Task == task {
				found = s.PID == was.PID && s.StartedAt.Equal(was.StartedAt) && s.Exit != nil && s.Exit.ExitCode == code
			}
		}
		if err != nil || !found {
			t.Errorf("list: %+v, %v; want %s to have ended with code %d", list, err, task, code)
		}
		if exit, err := c.Wait(t.Context(), task); err != nil || exit.ExitCode != code ||
			!strings.Contains(exit.Err, reason) {
			t.Errorf("wait for %s: %+v, %v; want code %d", task, exit, err, code)
		}
	}
	wantPast(second, "six", six, 6, "")
	if err := second.Signal(t.Context(), proctest.Latest(t, second, "six"), unix.SIGINT); !errors.Is(err,
		drivers.ErrNotRunning) {
		t.Errorf("signal to a process of the past: %v", err)
	}
	must.OK(t, unix.Kill(second.Keeper().PID, unix.SIGKILL))
	<-second.Done()
	must.OK(t, second.Close())

	third := start(t, keeper.Config{Dir: dir})
	wantPast(third, "six", six, 6, "")
	wantPast(third, "lost", lost, -1, "the keeper was killed")
	run(t, third, shell(dir, "six", "exit 7"))
	same.As(t, 7, must.Get(third.Wait(t.Context(), "six"))(t).ExitCode, "wait for the new process")
	if list, err := third.List(t.Context()); err != nil || len(list) != 2 || list[0].Task != "lost" ||
		list[1].PID == six.PID {
		t.Errorf("list: %+v, %v; want each task once, in order", list, err)
	}
	must.OK(t, third.Close())
	if list, err := start(t, keeper.Config{Dir: dir}).List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("after an orderly end: %+v, %v; want nothing", list, err)
	}
}

// TestBusy is a keeper only while something of a task is there.
func TestBusy(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	if keeper.Busy(dir) {
		t.Error("busy before the first task")
	}
	fifo := proctest.Fifo(t, dir)
	run(t, c, shell(dir, "t", `setsid sh -c 'echo $$ >$FIFO; exec sleep 1000 >/dev/null 2>&1' &`))
	proctest.ReadPID(t, fifo)
	must.Get(c.Wait(t.Context(), "t"))(t)
	if !keeper.Busy(dir) {
		t.Error("not busy with what a task has left behind")
	}
	must.Get(c.KillTree(t.Context(), proctest.Latest(t, c, "t")))(t)
	if keeper.Busy(dir) {
		t.Error("busy after the last task")
	}
}

// TestAStartOfTheClientBefore is done, or given up, before the next one asks: what runs then is in the list, and
// nothing else does.
func TestAStartOfTheClientBefore(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	for range 30 {
		began, before := make(chan struct{}), c
		var starting sync.WaitGroup
		starting.Go(func() {
			close(began)
			_, _ = before.Start(t.Context(), shell(dir, "t", "exec sleep 1000")) // whether it comes to that is not ours to say
		})
		<-began
		next, attached, err := keeper.Open(t.Context(), keeper.Config{Dir: dir, Marker: mark(dir)})
		if err != nil || !attached {
			t.Fatal(attached, err)
		}
		closeLater(t, next)
		list := must.Get(next.List(t.Context()))(t)
		runs := len(list) == 1 && list[0].Exit == nil
		if _, err := next.Start(t.Context(), shell(dir, "t", "exec sleep 1000")); errors.Is(err, drivers.ErrRunning) != runs {
			t.Fatalf("start: %v; the list has %+v", err, list)
		}
		must.Get(next.KillTree(t.Context(), proctest.Latest(t, next, "t")))(t)
		must.Get(next.Wait(t.Context(), "t"))(t)
		starting.Wait()
		c = next
	}
}
