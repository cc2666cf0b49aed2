package processes_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/processes"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// beside returns a script to run beside the task t; $FIFO is the pipe of fifo.
func (e *env) beside(script string) drivers.ExecSpec {
	spec := e.shell("t", script)
	return drivers.ExecSpec{Spec: spec, MaxOutput: 4096}
}

func TestExec(t *testing.T) {
	for way, cfg := range ways {
		t.Run(way, func(t *testing.T) {
			e := newLocal(t, cfg)
			e.start(e.shell("t", "exec sleep 1000"))
			got, err := e.Exec(t.Context(), e.beside(`echo out; echo err >&2; pwd; exit 7`))
			want := drivers.ExecResult{Exit: interfaces.ExitResult{ExitCode: 7, At: got.Exit.At},
				Output: []byte("out\nerr\n" + e.dir + "\n")}
			if diff := cmp.Diff(want, got); err != nil || diff != "" || got.Exit.At.IsZero() {
				t.Error(err, diff)
			}
			if list, err := e.List(t.Context()); err != nil || len(list) != 1 || list[0].Exit != nil {
				t.Errorf("list %+v, %v", list, err)
			}
			same.As(t, 0, e.killTree("t"), "processes besides the task's were killed")
			same.Error(t, drivers.ErrNotRunning, same.Err(e.Exec(t.Context(), e.beside("true"))), "after the task's end")
		})
	}
}

// TestWhatAnExecIsBornWith is what a task is born with, but for the output.
func TestWhatAnExecIsBornWith(t *testing.T) {
	leak, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0) // without close-on-exec
	must.OK(t, err)
	defer unix.Close(leak)
	e := newLocal(t, processes.Config{})
	program := filepath.Join(e.dir, "report")
	copyProgram(t, program)
	e.start(e.shell("t", "exec sleep 1000"))
	spec := drivers.ExecSpec{
		Spec:      drivers.Spec{Task: "t", Path: program, Args: []string{"helper", "report"}, Env: []string{"A=1"}, Dir: "/"},
		MaxOutput: 1 << 16,
	}
	want := report{
		Args: []string{program, "helper", "report"}, Env: spec.Env, Dir: "/",
		Files: map[string]string{"0": "/dev/null", "1": "pipe", "2": "pipe"},
		Umask: 0o022, Blocked: "0000000000000000", Ignored: "0000000000000000", Session: true, Group: true,
		User: []int{os.Getuid(), os.Getgid()},
	}
	if os.Geteuid() == 0 {
		spec.User = interfaces.User{Name: "nobody", UID: 65534, GID: 65534, Groups: []uint32{4242}}
		want.User = []int{65534, 65534}
	}
	result, err := e.Exec(t.Context(), spec)
	var got report
	if err := errors.Join(err, json.Unmarshal(result.Output, &got)); err != nil {
		t.Fatalf("%v: %+v, %s", err, result.Exit, result.Output)
	}
	want.Groups, want.OOM = got.Groups, got.OOM
	same.As(t, want, got)
}

func TestExecKeepsTheHeadOfItsOutput(t *testing.T) {
	e := newLocal(t, processes.Config{})
	e.start(e.shell("t", "exec sleep 1000"))
	spec := drivers.ExecSpec{Spec: drivers.Spec{Task: "t", Path: self(), Args: []string{"helper", "longline", "20"},
		Dir: "/"}, MaxOutput: 10}
	got, err := e.Exec(t.Context(), spec)
	if err != nil || string(got.Output) != "xxxxxxxxxx" || !got.Truncated || !got.Exit.Successful() {
		t.Errorf("%+v, %v", got, err)
	}
	spec = e.beside("printf 1234567890")
	spec.MaxOutput = 10
	if got, err := e.Exec(t.Context(), spec); err != nil || string(got.Output) != "1234567890" || got.Truncated {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestExecEndsWithItsContext(t *testing.T) {
	for way, cfg := range ways {
		t.Run(way, func(t *testing.T) {
			e := newLocal(t, cfg)
			r := e.fifo()
			e.start(e.shell("t", "exec sleep 1000"))
			ctx, cancel := context.WithCancel(t.Context())
			pid := 0
			go func() {
				defer cancel()
				pid = proctest.ReadPID(t, r)
			}()
			got, err := e.Exec(ctx, e.beside(`echo before; trap "" TERM; sh -c 'echo $$ >$FIFO; exec sleep 1000'; echo after`))
			if !errors.Is(err, context.Canceled) || string(got.Output) != "before\n" || got.Exit.Signal != 9 ||
				proctest.Alive(pid) {
				t.Errorf("%+v, %v, child alive: %v", got, err, proctest.Alive(pid))
			}
			same.Error(t, nil, e.Signal(t.Context(), proctest.Latest(t, e, "t"), 0), "the task itself")
		})
	}
}

// TestExecLeavesNothing: what it started in the background is gone when it has ended, and does not hold it up.
func TestExecLeavesNothing(t *testing.T) {
	for way, cfg := range ways {
		t.Run(way, func(t *testing.T) {
			e := newLocal(t, cfg)
			r := e.fifo()
			e.start(e.shell("t", "exec sleep 1000"))
			got, err := e.Exec(t.Context(),
				e.beside(`sh -c 'echo $$ >$FIFO; exec sleep 1000' & read x <$FIFO; echo $x >$FIFO; exit 3`))
			if pid := proctest.ReadPID(t, r); err != nil || got.Exit.ExitCode != 3 || proctest.Alive(pid) {
				t.Errorf("%+v, %v, child alive: %v", got, err, proctest.Alive(pid))
			}
		})
	}
}

// TestExecDiesWithItsTask and is not counted among what the task left behind, whether the task is killed or ends by
// itself.
func TestExecDiesWithItsTask(t *testing.T) {
	for way, cfg := range ways {
		for _, end := range []unix.Signal{0, unix.SIGTERM} {
			t.Run(way+"/"+end.String(), func(t *testing.T) {
				e := newLocal(t, cfg)
				r := e.fifo()
				e.start(e.shell("t", `sleep 1000 & echo $! >$FIFO; wait`))
				child := proctest.ReadPID(t, r)
				var got drivers.ExecResult
				var err error
				var wg sync.WaitGroup
				wg.Go(func() {
					got, err = e.Exec(t.Context(), e.beside(`(sh -c 'echo $$ >$FIFO; exec sleep 1000' &); exec sleep 1000`))
				})
				pid := proctest.ReadPID(t, r)
				if end != 0 {
					must.OK(t, e.Signal(t.Context(), proctest.Latest(t, e, "t"), end))
					e.wait("t")
					if !proctest.Alive(pid) {
						t.Error("it ended before the task's tree was killed")
					}
				}
				same.As(t, 1, e.killTree("t"), "processes besides the task's were killed")
				wg.Wait()
				if !errors.Is(err, drivers.ErrNotRunning) || got.Exit.Signal != 9 || proctest.Alive(pid) || proctest.Alive(child) {
					t.Errorf("%+v, %v, alive: %v, %v", got, err, proctest.Alive(pid), proctest.Alive(child))
				}
			})
		}
	}
}

// TestAnotherTasksEndSparesAnExec, also when that was the last task to run but for the one that the program belongs to.
func TestAnotherTasksEndSparesAnExec(t *testing.T) {
	for way, cfg := range ways {
		t.Run(way, func(t *testing.T) {
			e := newLocal(t, cfg)
			r := e.fifo()
			e.start(e.shell("t", "exec sleep 1000"))
			e.start(e.shell("other", "exec sleep 1000"))
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				if _, err := e.Exec(ctx, e.beside(`echo $$ >$FIFO; exec sleep 1000`)); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
			pid := proctest.ReadPID(t, r)
			must.OK(t, e.Signal(t.Context(), proctest.Latest(t, e, "t"), unix.SIGKILL))
			e.wait("t") // so that no task runs but the one that is killed next
			if n := e.killTree("other"); n != 0 || !proctest.Alive(pid) {
				t.Errorf("%d processes killed, the program is alive: %v", n, proctest.Alive(pid))
			}
			cancel()
			wg.Wait()
		})
	}
}

func TestExecsAreBounded(t *testing.T) {
	e := newLocal(t, processes.Config{})
	r := e.fifo()
	e.start(e.shell("t", "exec sleep 1000"))
	const many = 40
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range many {
		wg.Go(func() { _, _ = e.Exec(ctx, e.beside(`echo $$ >$FIFO; exec sleep 1000`)) })
	}
	for range processes.MaxExecs {
		proctest.ReadPID(t, r)
	}
	entries, _ := os.ReadDir("/proc/self/task")
	running := 0
	for _, task := range entries {
		text, _ := os.ReadFile(filepath.Join("/proc/self/task", task.Name(), "children"))
		for pid := range strings.FieldsSeq(string(text)) {
			if line, _ := os.ReadFile("/proc/" + pid + "/cmdline"); string(line) == "sleep\x001000\x00" {
				running++
			}
		}
	}
	if running > processes.MaxExecs+1 {
		t.Errorf("%d run at a time besides the task", running-1)
	}
	cancel()
	wg.Wait()
}

func TestExecErrors(t *testing.T) {
	e := newLocal(t, processes.Config{})
	same.Error(t, drivers.ErrNotRunning, same.Err(e.Exec(t.Context(), e.beside("true"))), "without a task")
	e.start(e.shell("t", "exec sleep 1000"))
	for want, change := range map[string]func(*drivers.ExecSpec){
		"does not exist":   func(s *drivers.ExecSpec) { s.Path = "/no/such" },
		"from 0 to 262144": func(s *drivers.ExecSpec) { s.MaxOutput = 1 << 30 },
	} {
		spec := e.beside("true")
		change(&spec)
		_, err := e.Exec(t.Context(), spec)
		if start, ok := errors.AsType[*drivers.StartError](err); !ok || !strings.Contains(start.Reason, want) {
			t.Errorf("got %v, want a StartError with %q", err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	same.Error(t, context.Canceled, same.Err(e.Exec(ctx, e.beside("true"))), "cancelled")
	must.OK(t, e.Close())
	same.Error(t, drivers.ErrClosed, same.Err(e.Exec(t.Context(), e.beside("true"))), "closed")
}

// TestCloseEndsExecs that are under way.
func TestCloseEndsExecs(t *testing.T) {
	e := newLocal(t, processes.Config{})
	r := e.fifo()
	e.start(e.shell("t", "exec sleep 1000"))
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := e.Exec(t.Context(), e.beside(`echo $$ >$FIFO; exec sleep 1000`)); !errors.Is(err,
			drivers.ErrNotRunning) {
			t.Error(err)
		}
	})
	pid := proctest.ReadPID(t, r)
	must.OK(t, e.Close())
	wg.Wait()
	if proctest.Alive(pid) {
		t.Error("the program still runs")
	}
}
