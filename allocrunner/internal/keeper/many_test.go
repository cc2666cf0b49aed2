package keeper_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/keeper"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestARequestTooMany is refused by itself: those under way go on, the connection stays, and there is room again when
// they have ended.
func TestARequestTooMany(t *testing.T) {
	const tooMany = 7
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	status := run(t, c, shell(dir, "t", `trap "exit 3" USR1; while :; do sleep 0.05; done`))
	results := make(chan error, keeper.MaxRequests+tooMany)
	for range keeper.MaxRequests + tooMany {
		go func() {
			exit, err := c.Wait(t.Context(), "t")
			if err == nil && exit.ExitCode != 3 {
				err = fmt.Errorf("exit %+v", exit)
			}
			results <- err
		}()
	}
	refused := map[bool]int{}
	for range tooMany {
		refused[errors.Is(<-results, keeper.ErrBusy)]++
	}
	if refused[true] != tooMany {
		t.Fatalf("refused: %v", refused)
	}
	must.OK(t, unix.Kill(status.PID, unix.SIGUSR1))
	for range keeper.MaxRequests {
		must.OK(t, <-results)
	}
	if list, err := c.List(t.Context()); err != nil || len(list) != 1 || list[0].Exit == nil ||
		list[0].Exit.ExitCode != 3 {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestManyRequests at once, be they questions for the end of a task or programs beside it that hang, are no end of it,
// nor of anything else.
func TestManyRequests(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	fifo := proctest.Fifo(t, dir)
	run(t, c, shell(dir, "t", `trap "exit 3" USR1; while :; do sleep 0.05; done`))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var waits, execs sync.WaitGroup
	for range 1500 {
		waits.Go(func() {
			if exit, err := c.Wait(t.Context(), "t"); err != nil || exit.ExitCode != 3 {
				t.Errorf("wait: %+v, %v", exit, err)
			}
		})
		execs.Go(func() {
			spec := drivers.ExecSpec{Spec: shell(dir, "t", "echo $$ >$FIFO; exec sleep 1000")}
			same.Error(t, context.Canceled, same.Err(c.Exec(ctx, spec)), "exec")
		})
	}
	proctest.ReadPID(t, fifo)
	if list, err := c.List(t.Context()); err != nil || len(list) != 1 || list[0].Exit != nil {
		t.Errorf("%+v, %v", list, err)
	}
	cancel()
	execs.Wait()
	must.OK(t, c.Signal(t.Context(), proctest.Latest(t, c, "t"), unix.SIGUSR1))
	waits.Wait()
}
