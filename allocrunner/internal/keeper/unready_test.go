package keeper_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/keeper"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestAPreparedKeeper: a process that Prepare has started is the keeper of the Config that has it. It ends when it gets
// no settings.
func TestAPreparedKeeper(t *testing.T) {
	prepare := func(dir string) *keeper.Unready {
		t.Helper()
		return must.Get(keeper.Prepare(dir))(t)
	}
	gone := func(when string, pid int) {
		t.Helper()
		same.Error(t, unix.ESRCH, unix.Kill(pid, 0), when, ": the process is left")
	}
	cfg := supervised(t.TempDir())
	cfg.Unused, cfg.Unready = true, prepare(cfg.Dir)
	s := must.Get(keeper.Supervise(t.Context(), cfg, true))(t)
	if s.Keeper().PID != cfg.Unready.PID() {
		t.Errorf("the keeper is process %d, and process %d was prepared", s.Keeper().PID, cfg.Unready.PID())
	}
	run(t, s, script(cfg.Dir, "t", "exit 3"))
	same.As(t, 3, must.Get(s.Wait(t.Context(), "t"))(t).ExitCode)
	must.OK(t, s.Close())
	gone("after the end", cfg.Unready.PID())

	u := prepare(t.TempDir())
	u.Close()
	gone("after Close", u.PID())

	u = prepare(t.TempDir())
	must.OK(t, u.Abandon())
	gone("after its starter", u.PID())

	u = prepare(t.TempDir())
	if _, _, err := keeper.Open(t.Context(), keeper.Config{Dir: "relative", Unused: true, Unready: u}); err == nil {
		t.Error("a relative directory")
	}
	gone("after a start that failed", u.PID())
}
