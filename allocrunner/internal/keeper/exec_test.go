package keeper_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/keeper"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/same"
)

// TestExecThroughTheKeeper: result, output so far with an error, and the end with the client.
func TestExecThroughTheKeeper(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	fifo := proctest.Fifo(t, dir)
	status := run(t, c, shell(dir, "t", "exec sleep 1000"))
	beside := func(script string) drivers.ExecSpec {
		s := shell(dir, "t", script)
		s.Env = append(s.Env, "ODD=\xff")
		return drivers.ExecSpec{Spec: s, MaxOutput: 100}
	}
	got, err := c.Exec(t.Context(), beside(`printf "$ODD"; echo err >&2; exit 3`))
	if err != nil || got.Exit.ExitCode != 3 || !bytes.Equal(got.Output, []byte("\xfferr\n")) || got.Truncated {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = c.Exec(t.Context(), drivers.ExecSpec{Spec: drivers.Spec{Task: "t", Path: "/no/such", Dir: "/"}})
	if start, ok := errors.AsType[*drivers.StartError](err); !ok || !strings.Contains(start.Reason, "does not exist") {
		t.Errorf("no program: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		proctest.ReadPID(t, fifo)
		cancel()
	}()
	got, err = c.Exec(ctx, beside(`echo so far; echo $$ >$FIFO; exec sleep 1000`))
	if !errors.Is(err, context.Canceled) || string(got.Output) != "so far\n" {
		t.Errorf("%+v, %v", got, err)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := c.Exec(t.Context(), beside(`echo $$ >$FIFO; exec sleep 1000`))
		failed <- err
	}()
	program := identify(t, proctest.ReadPID(t, fifo))
	detach(t, c)
	same.Error(t, drivers.ErrClosed, <-failed, "after the client's end")
	gone(t, program)
	if !identify(t, status.PID).Runs() {
		t.Error("the task has ended, too")
	}
}
