package keeper_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/driver"
	"taskapi/allocrunner/internal/keeper"
)

// TestManyRequests at once, be they questions for the end of a task or programs beside it that hang, are no end of it, nor of anything else.
func TestManyRequests(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	fifo := newFIFO(t, dir)
	run(t, c, shell(dir, "t", `trap "exit 3" USR1; while :; do sleep 0.01; done`))
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
			spec := driver.ExecSpec{Task: "t", Path: "/bin/sh", Args: []string{"-c", "echo $$ >$FIFO; exec sleep 1000"}, Dir: dir, Env: shell(dir, "t", "").Env}
			if _, err := c.Exec(ctx, spec); !errors.Is(err, context.Canceled) {
				t.Errorf("exec: %v", err)
			}
		})
	}
	readPID(t, fifo)
	if list, err := c.List(t.Context()); err != nil || len(list) != 1 || list[0].Exit != nil {
		t.Errorf("%+v, %v", list, err)
	}
	cancel()
	execs.Wait()
	if err := c.Signal(t.Context(), "t", unix.SIGUSR1); err != nil {
		t.Error(err)
	}
	waits.Wait()
}
