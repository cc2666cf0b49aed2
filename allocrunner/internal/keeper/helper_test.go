package keeper_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/keeper"
	"taskapi/internal/must"
	"taskapi/internal/proc"
)

// TestMain runs the tests, or is a keeper, an agent that is to be killed ("agent DIR SCRIPT"), or a program whose
// environment can't be seen ("hide").
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == keeper.Command:
		unix.Exit(keeper.Main(nil)) // os.Exit would let the race detector sleep for a second
	case len(os.Args) > 3 && os.Args[1] == "agent":
		os.Exit(agent(os.Args[2], os.Args[3]))
	case len(os.Args) > 1 && os.Args[1] == "reap":
		unix.Exit(reap())
	case len(os.Args) > 1 && os.Args[1] == "hide":
		os.Exit(hide(os.Getenv("FIFO")))
	}
	goleak.VerifyTestMain(m)
}

// agent starts a keeper and one task and says the task's number.
func agent(dir, script string) int {
	c, _, err := keeper.Open(context.Background(), keeper.Config{Dir: dir, Marker: mark(dir)})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	status, err := c.Start(context.Background(), shell(dir, "t", script))
	fmt.Println(status.PID, err)
	select {}
}

// hide overwrites the environment and says its number.
func hide(fifo string) int {
	err := overwriteEnv()
	if err == nil {
		err = os.WriteFile(fifo, []byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	select {}
}

func mark(dir string) string { return "NOMAD_ALLOC_ID=" + dir }

func shell(dir, task, script string) drivers.Spec {
	return drivers.Spec{
		Task: task, Path: "/bin/sh", Args: []string{"-c", script}, Dir: dir,
		Env: []string{"PATH=" + os.Getenv("PATH"), "FIFO=" + filepath.Join(dir, "fifo"), "NOMAD_TASK_NAME=" + task,
			mark(dir)},
		Logs: drivers.LogSpec{Dir: dir, MaxFiles: 100, MaxFileBytes: 1 << 20},
	}
}

func start(t *testing.T, cfg keeper.Config) *keeper.Client {
	t.Helper()
	cfg.Marker = mark(cfg.Dir)
	c, attached, err := keeper.Open(t.Context(), cfg)
	if err != nil || attached {
		t.Fatal(attached, err)
	}
	t.Cleanup(func() { // should the client have been detached
		if _, err := keeper.End(context.Background(), cfg); err != nil {
			t.Error(err)
		}
	})
	closeLater(t, c)
	t.Cleanup(func() {
		if text, _ := os.ReadFile(filepath.Join(cfg.Dir, "keeper.log")); t.Failed() {
			t.Logf("the keeper's log:\n%s", text)
		}
	})
	return c
}

func attach(t *testing.T, dir string) *keeper.Client {
	t.Helper()
	c := must.Get(keeper.Attach(t.Context(), dir))(t)
	closeLater(t, c)
	return c
}

func closeLater(t *testing.T, c *keeper.Client) {
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// starter is a client or a supervisor.
type starter interface {
	Start(context.Context, drivers.Spec) (drivers.ProcessStatus, error)
}

func run(t *testing.T, s starter, spec drivers.Spec) drivers.ProcessStatus {
	t.Helper()
	return must.Get(s.Start(t.Context(), spec))(t)
}

func identify(t *testing.T, pid int) proc.Identity {
	t.Helper()
	return must.Get(proc.Identify(pid))(t)
}

// gone waits for the end of a process.
func gone(t *testing.T, id proc.Identity) {
	t.Helper()
	for id.Runs() {
		if t.Context().Err() != nil {
			t.Fatalf("process %d still runs", id.PID)
		}
		unix.Poll(nil, 2)
	}
}

// lockLog locks the log of the keeper in dir as a keeper does that can't be seen.
func lockLog(t *testing.T, dir string) {
	t.Helper()
	log := must.Get(os.OpenFile(filepath.Join(dir, "keeper.log"), os.O_CREATE|os.O_WRONLY, 0o600))(t)
	t.Cleanup(func() { log.Close() })
	must.OK(t, unix.Flock(int(log.Fd()), unix.LOCK_EX))
}
