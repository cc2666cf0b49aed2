package processes_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/processes"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestWhatAProcessIsBornWith spoils what it could inherit, and looks at what it got.
func TestWhatAProcessIsBornWith(t *testing.T) {
	leak, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0) // without close-on-exec
	must.OK(t, err)
	defer unix.Close(leak)
	signal.Ignore(unix.SIGHUP, unix.SIGUSR1, unix.SIGTSTP)
	defer signal.Reset(unix.SIGHUP, unix.SIGUSR1, unix.SIGTSTP)
	t.Setenv("OURS", "secret")

	users := []interfaces.User{{}}
	if os.Geteuid() == 0 {
		users = append(users, interfaces.User{Name: "nobody", UID: 65534, GID: 65534, Groups: []uint32{4242}})
	}
	for _, user := range users {
		t.Run(user.Name, func(t *testing.T) {
			e := newLocal(t, processes.Config{})
			program := filepath.Join(e.dir, "report") // the test binary's own directory is closed to others
			copyProgram(t, program)
			spec := e.spec("t", program, "helper", "report", "a b", "")
			spec.User, spec.OOMScoreAdj = user, 500
			ignoreReserved(t)
			umask := unix.Umask(0o077)
			e.start(spec)
			same.As(t, 0o077, unix.Umask(umask), "this program's own umask is now")
			exit := e.wait("t")
			e.killTree("t")
			var got report
			if err := json.Unmarshal([]byte(e.output("t.stdout")), &got); err != nil {
				t.Fatalf("%v: exit %+v, output %q %q", err, exit, e.output("t.stdout"), e.output("t.stderr"))
			}
			want := report{
				Args: append([]string{program}, spec.Args...), Env: spec.Env, Dir: e.dir,
				Files: map[string]string{"0": "/dev/null", "1": "pipe", "2": "pipe"},
				Umask: 0o022, Blocked: "0000000000000000", Ignored: "0000000000000000", Session: true, Group: true,
				User: []int{os.Getuid(), os.Getgid()}, Groups: got.Groups, OOM: got.OOM,
			}
			if user.Name != "" {
				want.User, want.Groups = []int{int(user.UID), int(user.GID)}, []int{4242}
			}
			same.As(t, want, got)
		})
	}
}

// ignoreReserved ignores a signal that Go's runtime lets nobody catch, as some parents leave it to their children.
func ignoreReserved(t *testing.T) {
	t.Helper()
	action := [4]uint64{1} // SIG_IGN
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, 32, uintptr(unsafe.Pointer(&action)), 0, 8, 0,
		0); errno != 0 {
		t.Fatal(errno)
	}
}

// TestSignalsAreNotBlocked, though they were when this program's thread, and so the supervisor, began.
func TestSignalsAreNotBlocked(t *testing.T) {
	dir := t.TempDir()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var blocked, before unix.Sigset_t
	blocked.Val[0] = 1 << (unix.SIGUSR2 - 1)
	must.OK(t, unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, &before))
	parent := exec.Command(self(), "helper", "supervise", dir, self(), "helper", "report")
	err := parent.Start()
	must.OK(t, errors.Join(err, unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)))
	defer func() { parent.Process.Kill(); parent.Wait() }()
	var text []byte
	for ; !strings.HasSuffix(string(text), "\n"); proctest.Pause() {
		text, _ = os.ReadFile(filepath.Join(dir, "t.stdout.0"))
	}
	var got report
	if err := json.Unmarshal(text, &got); err != nil || got.Blocked != "0000000000000000" {
		t.Errorf("blocked signals %s, %v", got.Blocked, err)
	}
}

func copyProgram(t *testing.T, to string) {
	t.Helper()
	must.Program(t, to, must.Read(t, self()))
	must.OK(t, os.Chmod(to, 0o755))
}

func TestOOMScore(t *testing.T) {
	e := newLocal(t, processes.Config{})
	r := e.fifo()
	spec := e.shell("t", `echo up >$FIFO; read x; exec sleep 1000`)
	spec.OOMScoreAdj = 321
	status := e.start(spec)
	proctest.ReadLine(t, r)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", status.PID))
	if err != nil || strings.TrimSpace(string(text)) != "321" {
		t.Errorf("got %q, %v", text, err)
	}
}

func TestExitResults(t *testing.T) {
	e := newLocal(t, processes.Config{})
	for _, c := range []struct {
		script string
		want   interfaces.ExitResult
	}{
		{"exit 0", interfaces.ExitResult{}},
		{"exit 7", interfaces.ExitResult{ExitCode: 7}},
		{"kill -INT $$", interfaces.ExitResult{ExitCode: 130, Signal: 2}},
		{"kill -KILL $$", interfaces.ExitResult{ExitCode: 137, Signal: 9}},
		{"kill -SEGV $$", interfaces.ExitResult{ExitCode: 139, Signal: 11}},
	} {
		e.start(e.shell("t", c.script))
		got := e.wait("t")
		if got.At.IsZero() {
			t.Errorf("%s: no time of exit", c.script)
		}
		got.At = time.Time{}
		same.As(t, c.want, got, c.script)
	}
}

func TestSignalReachesTheFirstProcessAlone(t *testing.T) {
	e := newLocal(t, processes.Config{})
	r := e.fifo()
	status := e.start(e.shell("t", `trap "echo parent got it; exit 3" USR1; sh -c 'trap "echo child got it" USR1; echo `+
		`up >$FIFO; while :; do sleep 1; done' & wait`))
	proctest.ReadLine(t, r)
	must.OK(t, e.Signal(t.Context(), proctest.Latest(t, e, "t"), unix.SIGUSR1))
	if exit := e.wait("t"); exit.ExitCode != 3 {
		t.Errorf("exit %+v of process %d", exit, status.PID)
	}
	e.killTree("t")
	same.As(t, "parent got it\n", e.output("t.stdout"), "output")
	for _, task := range []string{"t", "never"} {
		if err := e.Signal(t.Context(), proctest.Latest(t, e, task), unix.SIGTERM); !errors.Is(err, drivers.ErrNotRunning) {
			t.Errorf("signal to %s, which does not run: %v", task, err)
		}
	}
}

func TestAnIgnoredSignalIsFollowedByKillTree(t *testing.T) {
	e := newLocal(t, processes.Config{})
	e.start(e.spec("t", self(), "helper", "stubborn"))
	for e.output("t.stdout") != "ready\n" {
		proctest.Pause()
	}
	for range 3 {
		must.OK(t, e.Signal(t.Context(), proctest.Latest(t, e, "t"), unix.SIGTERM))
	}
	same.As(t, 0, e.killTree("t"), "processes besides the first")
	if exit := e.wait("t"); exit.Signal != 9 || exit.ExitCode != 137 {
		t.Errorf("exit %+v", exit)
	}
}

func TestWaitIsNotHeldUpByAGrandchildWithThePipe(t *testing.T) {
	e := newLocal(t, processes.Config{DrainTime: time.Millisecond})
	r := e.fifo()
	// The grandchild writes until its pipe is cut off, which SIGPIPE makes it feel.
	e.start(e.shell("t", `sh -c 'trap "" PIPE; echo $$ >$FIFO; while echo alive; do sleep 0.01; done 2>/dev/null; echo `+
		`cut >$FIFO; exec sleep 1000' & exit 5`))
	pid := proctest.ReadPID(t, r)
	if exit := e.wait("t"); exit.ExitCode != 5 || !proctest.Alive(pid) {
		t.Fatalf("exit %+v, grandchild alive: %v", exit, proctest.Alive(pid))
	}
	same.As(t, "cut", proctest.ReadLine(t, r), "the grandchild says")
	if n := e.killTree("t"); n == 0 || proctest.Alive(pid) {
		t.Errorf("%d killed, grandchild alive: %v", n, proctest.Alive(pid))
	}
}

func TestAFloodLosesNothing(t *testing.T) {
	e := newLocal(t, processes.Config{})
	spec := e.shell("t", `i=0; while [ $i -lt 20000 ]; do echo "line $i of the flood"; i=$((i+1)); done; echo last >&2`)
	spec.Logs.MaxFiles, spec.Logs.MaxFileBytes = 1000, 64<<10
	e.start(spec)
	e.wait("t")
	e.killTree("t")
	var want strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&want, "line %d of the flood\n", i)
	}
	if got := e.output("t.stdout"); got != want.String() {
		t.Errorf("%d bytes written, %d in the files", want.Len(), len(got))
	}
	same.As(t, "last\n", e.output("t.stderr"), "stderr")
}

func TestALongLineTakesLittleMemory(t *testing.T) {
	e := newLocal(t, processes.Config{})
	spec := e.spec("t", self(), "helper", "longline", "50")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	e.start(spec)
	e.wait("t")
	e.killTree("t")
	runtime.ReadMemStats(&after)
	same.As(t, 50<<20, len(e.output("t.stdout")), "bytes in the files")
	if got := int64(after.HeapSys) - int64(before.HeapSys); got > 16<<20 {
		t.Errorf("the heap grew by %d bytes for a line of 50 MiB", got)
	}
}

func TestLogsMayBeDisabled(t *testing.T) {
	e := newLocal(t, processes.Config{})
	spec := e.shell("t", "echo hello; echo there >&2")
	spec.Logs = drivers.LogSpec{Disabled: true}
	e.start(spec)
	if exit := e.wait("t"); !exit.Successful() {
		t.Errorf("exit %+v", exit)
	}
	if entries, _ := os.ReadDir(e.dir); len(entries) != 0 {
		t.Errorf("files %v", entries)
	}
}

func TestOneProcessForEachTask(t *testing.T) {
	e := newLocal(t, processes.Config{})
	var wg sync.WaitGroup
	results := make(chan error, 8)
	for range cap(results) {
		wg.Go(func() {
			_, err := e.Start(t.Context(), e.shell("t", "exec sleep 1000"))
			results <- err
		})
	}
	wg.Wait()
	close(results)
	started := 0
	for err := range results {
		if err == nil {
			started++
		} else if !errors.Is(err, drivers.ErrRunning) {
			t.Error(err)
		}
	}
	same.As(t, 1, started, "started")
}

func TestListAndWaitAfterTheEnd(t *testing.T) {
	e := newLocal(t, processes.Config{})
	b := e.start(e.shell("b", "exec sleep 1000"))
	a := e.start(e.shell("a", "exit 3"))
	e.wait("a")
	list, err := e.List(t.Context())
	if err != nil || len(list) != 2 || list[0].PID != a.PID || list[0].Exit == nil || list[0].Exit.ExitCode != 3 ||
		list[1].PID != b.PID || list[1].Exit != nil {
		t.Errorf("%+v, %v", list, err)
	}
	if exit := e.wait("a"); exit.ExitCode != 3 {
		t.Errorf("the second Wait says %+v", exit)
	}
	same.Error(t, drivers.ErrNotRunning, same.Err(e.Wait(t.Context(), "never")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	same.Error(t, context.Canceled, same.Err(e.Wait(ctx, "b")))
}

func TestRestartLoopLeavesNothingBehind(t *testing.T) {
	e := newLocal(t, processes.Config{})
	run := func() {
		e.start(e.shell("t", "sleep 1000 & (sleep 1000 &) ; echo run; exit 1"))
		e.wait("t")
	}
	run()
	before := openFiles(t)
	for range 30 {
		run()
	}
	if after := openFiles(t); after > before+2 { // streams being closed just now
		t.Errorf("%d open files before, %d after", before, after)
	}
	e.killTree("t")
	same.As(t, 31, strings.Count(e.output("t.stdout"), "run\n"), "lines of 31 runs")
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries := must.Get(os.ReadDir("/proc/self/fd"))(t)
	return len(entries)
}

func TestCloseKillsAndRefuses(t *testing.T) {
	e := newLocal(t, processes.Config{})
	r := e.fifo()
	e.start(e.shell("t", "sleep 1000 & echo $! >$FIFO; exec sleep 1000"))
	child := proctest.ReadPID(t, r)
	must.OK(t, e.Close())
	if exit := e.wait("t"); exit.Signal != 9 || proctest.Alive(child) {
		t.Errorf("exit %+v, child alive: %v", exit, proctest.Alive(child))
	}
	same.Error(t, drivers.ErrClosed, same.Err(e.Start(t.Context(), e.shell("t", "true"))))
}

func TestCloseOfAnUnusedSupervisor(t *testing.T) {
	e := newLocal(t, processes.Config{})
	must.OK(t, errors.Join(e.Close(), e.Close()))
}

// TestProcessesDieWithTheirParent: killed without warning, it leaves no first process running.
func TestProcessesDieWithTheirParent(t *testing.T) {
	e := newLocal(t, processes.Config{})
	fifo := filepath.Join(e.dir, "held")
	must.OK(t, unix.Mkfifo(fifo, 0o600))
	parent := exec.Command(self(), "helper", "supervise", e.dir, "/bin/sh", "-c", "exec sleep 1000 >"+fifo)
	must.OK(t, parent.Start())
	f, err := os.Open(fifo) // waits until the task has opened it
	must.OK(t, err)
	defer f.Close()
	must.OK(t, parent.Process.Kill())
	_ = parent.Wait()
	if n, err := f.Read(make([]byte, 1)); n != 0 || err == nil { // the end comes with the task's death
		t.Errorf("read %d, %v", n, err)
	}
}
