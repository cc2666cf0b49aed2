package keeper_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
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

func TestASupervisorLikeAnyOther(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	fifo := proctest.Fifo(t, dir)
	spec := shell(dir, "t", `printf 'odd: %s\n' "$ODD"; trap 'exit 3' USR1; sleep 1000 & echo $! >$FIFO; wait`)
	spec.Env = append(spec.Env, "ODD=\xff\xfe\"\n")
	status := run(t, c, spec)
	child := proctest.ReadPID(t, fifo)

	same.Error(t, drivers.ErrRunning, same.Err(c.Start(t.Context(), spec)), "second start")
	if list, err := c.List(t.Context()); err != nil || len(list) != 1 || list[0].PID != status.PID || list[0].Exit != nil {
		t.Errorf("list %+v, %v", list, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond) // the request is on its way by then
	defer cancel()
	if _, err := c.Wait(ctx, "t"); !errors.Is(err, context.DeadlineExceeded) ||
		strings.Contains(err.Error(), "does not answer") {
		t.Errorf("cancelled wait: %v", err)
	}
	must.OK(t, c.Signal(t.Context(), proctest.Latest(t, c, "t"), unix.SIGUSR1))
	exit, err := c.Wait(t.Context(), "t")
	if err != nil || exit.ExitCode != 3 || exit.At.IsZero() {
		t.Errorf("exit %+v, %v", exit, err)
	}
	if n, err := c.KillTree(t.Context(), proctest.Latest(t, c, "t")); n != 1 || err != nil {
		t.Errorf("%d killed, %v", n, err)
	}
	for unix.Kill(child, 0) == nil { // until it is reaped, too
		unix.Poll(nil, 2)
	}
	if err := c.Signal(t.Context(), proctest.Latest(t, c, "t"), unix.SIGTERM); !errors.Is(err, drivers.ErrNotRunning) {
		t.Errorf("signal after the end: %v", err)
	}
	if text, _ := os.ReadFile(filepath.Join(dir, "t.stdout.0")); string(text) != "odd: \xff\xfe\"\n\n" {
		t.Errorf("output %q", text)
	}
	spec.Path = "/no/such"
	_, err = c.Start(t.Context(), spec)
	startErr, ok := errors.AsType[*drivers.StartError](err)
	if !ok || !errors.Is(err, unix.ENOENT) || !strings.Contains(startErr.Reason, "install it") {
		t.Errorf("start of nothing: %v", err)
	}
}

func TestManyAtOnce(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	var wg sync.WaitGroup
	for i := range 20 {
		task := fmt.Sprint("t", i)
		wg.Go(func() {
			for want := range 3 {
				if _, err := c.Start(t.Context(), shell(dir, task, fmt.Sprintf("echo hello; exit %d", want))); err != nil {
					t.Error(err)
					return
				}
				exit, err := c.Wait(t.Context(), task)
				if err != nil || exit.ExitCode != want {
					t.Errorf("%s: %+v, %v", task, exit, err)
				}
				if _, err := c.KillTree(t.Context(), proctest.Latest(t, c, task)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if text, _ := os.ReadFile(filepath.Join(dir, "t7.stdout.0")); string(text) != "hello\nhello\nhello\n" {
		t.Errorf("output %q", text)
	}
}

// TestTheAgentIsKilled and comes back: the same process, every byte of its output, its exit code.
func TestTheAgentIsKilled(t *testing.T) {
	dir := t.TempDir()
	go_ := filepath.Join(dir, "go")
	must.OK(t, unix.Mkfifo(go_, 0o600))
	const lines = 20000
	first := exec.Command("/proc/self/exe", "agent", dir,
		fmt.Sprintf(`i=0; while [ $i -lt %d ]; do echo "line $i"; i=$((i+1)); [ $i = 100 ] && echo half >%s; done; read x `+
			`<%s; exit 42`, lines, go_, go_))
	said := must.Get(first.StdoutPipe())(t)
	must.OK(t, first.Start())
	line, _ := bufio.NewReader(said).ReadString('\n')
	var pid int
	if _, err := fmt.Sscanf(line, "%d <nil>", &pid); err != nil {
		t.Fatalf("the sidecar says %q", line)
	}
	if _, err := os.ReadFile(go_); err != nil { // in the middle of the output
		t.Fatal(err)
	}
	must.OK(t, first.Process.Kill())
	_ = first.Wait()

	c := attach(t, dir)
	list, err := c.List(t.Context())
	if err != nil || len(list) != 1 || list[0].PID != pid || list[0].Exit != nil {
		t.Fatalf("list %+v, %v; want process %d", list, err, pid)
	}
	must.OK(t, os.WriteFile(go_, []byte("go\n"), 0))
	same.As(t, 42, must.Get(c.Wait(t.Context(), "t"))(t).ExitCode, "exit")
	must.Get(c.KillTree(t.Context(), proctest.Latest(t, c, "t")))(t)
	var want strings.Builder
	for i := range lines {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	if text, _ := os.ReadFile(filepath.Join(dir, "t.stdout.0")); string(text) != want.String() {
		t.Errorf("%d bytes of output, want %d", len(text), want.Len())
	}
}

// TestExitsAreKeptWhileNobodyIsThere, with what the task left behind killed.
func TestExitsAreKeptWhileNobodyIsThere(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	fifo := proctest.Fifo(t, dir)
	must.OK(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	status := run(t, c, shell(dir, "t", `sleep 1000 & echo $! >$FIFO; while [ -d sub ]; do sleep 0.05; done; exit 9`))
	child, task := identify(t, proctest.ReadPID(t, fifo)), identify(t, status.PID)
	must.OK(t, c.Detach())
	must.OK(t, os.Remove(filepath.Join(dir, "sub")))
	gone(t, task)
	gone(t, child)
	again := attach(t, dir)
	if list, err := again.List(t.Context()); err != nil || len(list) != 1 || list[0].Exit == nil ||
		list[0].Exit.ExitCode != 9 {
		t.Errorf("list %+v, %v", list, err)
	}
	same.As(t, 9, must.Get(again.Wait(t.Context(), "t"))(t).ExitCode, "exit")
}

func TestAnIdleKeeperEndsAndLeavesTheExits(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir, Idle: time.Millisecond})
	run(t, c, shell(dir, "t", "exit 6"))
	must.Get(c.Wait(t.Context(), "t"))(t)
	id := c.Keeper()
	must.OK(t, c.Detach())
	gone(t, id)
	same.Error(t, keeper.ErrNoKeeper, same.Err(keeper.Attach(t.Context(), dir)), "attach")
	last, err := keeper.Last(dir)
	if err != nil || len(last.Tasks) != 1 || last.Tasks[0].Exit == nil || last.Tasks[0].Exit.ExitCode != 6 {
		t.Errorf("%+v, %v", last, err)
	}
}

// TestTheKeeperIsKilled: clients learn of it, no task survives, and the next keeper clears up.
func TestTheKeeperIsKilled(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	fifo := proctest.Fifo(t, dir)
	status := run(t, c,
		shell(dir, "t", `setsid sh -c 'echo $$ >$FIFO; exec sleep 1000 >/dev/null 2>&1' & exec sleep 1000`))
	child, task := identify(t, proctest.ReadPID(t, fifo)), identify(t, status.PID)
	waited := make(chan error, 1)
	go func() { _, err := c.Wait(t.Context(), "t"); waited <- err }()
	must.OK(t, unix.Kill(c.Keeper().PID, unix.SIGKILL))
	<-c.Done()
	same.Error(t, drivers.ErrLost, <-waited, "wait")
	same.Error(t, drivers.ErrLost, same.Err(c.Start(t.Context(), shell(dir, "u", "true"))), "start")
	gone(t, task)
	must.OK(t, c.Close())
	same.Error(t, keeper.ErrNoKeeper, same.Err(keeper.Attach(t.Context(), dir)), "attach")
	last, err := keeper.Last(dir)
	if err != nil || len(last.Tasks) != 1 || last.Tasks[0].Exit != nil {
		t.Errorf("record %+v, %v", last, err)
	}
	next, attached, err := keeper.Open(t.Context(), keeper.Config{Dir: dir, Marker: mark(dir)})
	if err != nil || attached {
		t.Fatal(attached, err)
	}
	closeLater(t, next)
	if child.Runs() {
		t.Error("a process of the lost keeper still runs")
	}
	if last.Cgroup != "" {
		same.Fails(t, same.Err(os.Stat(last.Cgroup)), last.Cgroup, " is still there")
	}
	run(t, next, shell(dir, "t", "exit 0"))
}

func TestTheLatestClientWins(t *testing.T) {
	dir := t.TempDir()
	first := start(t, keeper.Config{Dir: dir})
	run(t, first, shell(dir, "t", "exec sleep 1000"))
	second, attached, err := keeper.Open(t.Context(), keeper.Config{Dir: dir})
	if err != nil || !attached {
		t.Fatal(attached, err)
	}
	closeLater(t, second)
	<-first.Done()
	same.Error(t, keeper.ErrReplaced, same.Err(first.List(t.Context())), "the first client's list")
	if err := first.Close(); err != nil { // ends nothing that is not its own
		t.Error(err)
	}
	if list, err := second.List(t.Context()); err != nil || len(list) != 1 || list[0].Exit != nil {
		t.Errorf("list %+v, %v", list, err)
	}
	if _, err := keeper.Sweep(t.Context(), keeper.Config{Dir: dir}); !errors.Is(err, keeper.ErrKeeperRuns) {
		t.Errorf("sweep beside a keeper: %v", err)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 40)) // longer than a socket address may be
	must.OK(t, os.MkdirAll(dir, 0o755))
	c := start(t, keeper.Config{Dir: dir})
	task := identify(t, run(t, c, shell(dir, "t", `trap "" TERM INT; while :; do sleep 1; done`)).PID)
	if info, err := os.Stat(filepath.Join(dir, "keeper.sock")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket %v, %v", info, err)
	}
	must.OK(t, c.Close())
	if task.Runs() || c.Keeper().Runs() {
		t.Errorf("task runs: %v, keeper runs: %v", task.Runs(), c.Keeper().Runs())
	}
	for _, name := range []string{"keeper.sock", "keeper.json"} {
		same.Fails(t, same.Err(os.Stat(filepath.Join(dir, name))), name, " is still there")
	}
	same.Error(t, drivers.ErrClosed, same.Err(c.List(t.Context())))
}

func TestSIGTERM(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	task := identify(t, run(t, c, shell(dir, "t", `exec sleep 1000`)).PID)
	for _, sig := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTERM} {
		must.OK(t, unix.Kill(c.Keeper().PID, sig))
	}
	for said := ""; !strings.Contains(said, "signal left to the client"); unix.Poll(nil, 2) {
		text, err := os.ReadFile(filepath.Join(dir, "keeper.log"))
		if said = string(text); err != nil || strings.Contains(said, "the keeper ends") {
			t.Fatal(said, err)
		}
	}
	if _, err := c.List(t.Context()); err != nil || !task.Runs() {
		t.Fatalf("with a client the keeper ended by a signal: %v", err)
	}
	must.OK(t, c.Detach())
	for id := c.Keeper(); id.Runs(); unix.Poll(nil, 2) { // the client may not be missed yet by the first
		unix.Kill(id.PID, unix.SIGTERM)
	}
	if task.Runs() {
		t.Error("the task still runs")
	}
}

func TestABadClientHurtsNobody(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	for _, text := range []string{"", "\x00", "\xff\xff\xff\xff", "\x00\x00\x00\x02{]", "GET / HTTP/1.1\r\n\r\n"} {
		conn := must.Get(net.Dial("unix", filepath.Join(dir, "keeper.sock")))(t)
		must.Get(conn.Write([]byte(text)))(t)
		conn.Close()
	}
	must.Get(c.List(t.Context()))(t)
}

func TestAnotherUserMayNotControl(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("takes root to be somebody else")
	}
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	// Even one for whom the socket's mode is no bar.
	for path := filepath.Join(dir, "keeper.sock"); path != os.TempDir() && path != "/"; path = filepath.Dir(path) {
		must.OK(t, os.Chmod(path, 0o777))
	}
	errs := make(chan error, 1)
	go func() { // on a thread of its own, which ends with it
		runtime.LockOSThread()
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 65534, ^uintptr(0)); e != 0 {
			errs <- e
			return
		}
		conn, err := net.Dial("unix", filepath.Join(dir, "keeper.sock"))
		if err != nil {
			errs <- err
			return
		}
		defer conn.Close()
		conn.Write([]byte("\x00\x00\x00\x0d{\"Version\":2}"))
		if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
			errs <- fmt.Errorf("it answers: %d, %w", n, err)
			return
		}
		errs <- nil
	}()
	must.OK(t, <-errs)
	must.Get(c.List(t.Context()))(t)
}

func TestRecordsThatAreNotTrue(t *testing.T) {
	self := identify(t, os.Getpid())
	for name, text := range map[string]string{
		"none":             "",
		"no JSON":          "{",
		"number reused":    fmt.Sprintf(`{"Keeper":{"PID":%d,"Start":%d,"Boot":%q}}`, self.PID, self.Start+1, self.Boot),
		"before a reboot":  fmt.Sprintf(`{"Keeper":{"PID":%d,"Start":%d,"Boot":"other"}}`, self.PID, self.Start),
		"no such process":  `{"Keeper":{"PID":4194304,"Start":1,"Boot":"x"}}`,
		"a strange number": `{"Keeper":{"PID":-1}}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if text != "" {
				must.OK(t, os.WriteFile(filepath.Join(dir, "keeper.json"), []byte(text), 0o600))
			}
			same.Error(t, keeper.ErrNoKeeper, same.Err(keeper.Attach(t.Context(), dir)), "attach")
			start(t, keeper.Config{Dir: dir})
		})
	}
	t.Run("another process", func(t *testing.T) {
		dir := t.TempDir()
		l, err := net.Listen("unix", filepath.Join(dir, "keeper.sock"))
		must.OK(t, err)
		defer l.Close()
		other := exec.Command("sleep", "1000") // which the answer names, but the socket is ours
		must.OK(t, other.Start())
		defer func() { other.Process.Kill(); other.Wait() }()
		go func() {
			if conn, err := l.Accept(); err == nil {
				defer conn.Close()
				_, _ = readFrame(conn)
				_ = writeFrame(conn, fmt.Sprintf(`{"Version":3,"Keeper":{"PID":%d}}`, other.Process.Pid))
			}
		}()
		_, err = keeper.Attach(t.Context(), dir)
		if err == nil || errors.Is(err, keeper.ErrNoKeeper) || !strings.Contains(err.Error(), "says that it is process") {
			t.Errorf("attach: %v", err)
		}
	})
}

func TestAProgramThatIsNoKeeper(t *testing.T) {
	for exe, want := range map[string]string{"/bin/true": "without a word", "/no/such": "no such file"} {
		if _, _, err := keeper.Open(t.Context(), keeper.Config{Dir: t.TempDir(), Exe: exe}); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", exe, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	same.Error(t, context.Canceled, same.Err2(keeper.Open(ctx, keeper.Config{Dir: t.TempDir()})), "cancelled")
}

// TestAStartOutlivesItsClient: a process that is about to become its program when the client goes becomes it, and the
// next client learns of it.
func TestAStartOutlivesItsClient(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	spec := shell(dir, "t", "")
	spec.Path, spec.Args = filepath.Join(dir, "program"), nil
	must.Program(t, spec.Path, []byte("#!/bin/sh\nexit 7\n"))
	lease := must.Get(os.Open(spec.Path))(t)
	defer lease.Close()
	executed := make(chan os.Signal, 1)
	signal.Notify(executed, unix.SIGIO)
	defer signal.Stop(executed)
	if _, err := unix.FcntlInt(lease.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skip("no lease can be had here:", err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := c.Start(t.Context(), spec)
		answered <- err
	}()
	<-executed // by a process that waits for the lease now
	must.OK(t, c.Detach())
	lease.Close()
	same.Fails(t, <-answered, "the client that has gone got an answer")
	next := must.Get(keeper.Attach(t.Context(), dir))(t)
	defer next.Close()
	if exit, err := next.Wait(t.Context(), "t"); err != nil || exit.ExitCode != 7 {
		t.Errorf("the next client hears of %+v, %v; want exit code 7", exit, err)
	}
}

// TestKeepOpen: the files of each agent of an allocation are the same, and the keeper has each once.
func TestKeepOpen(t *testing.T) {
	dir := t.TempDir()
	c := start(t, keeper.Config{Dir: dir})
	path := filepath.Join(t.TempDir(), "lock")
	open := func() (n int) {
		t.Helper()
		f := must.Get(os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600))(t)
		defer f.Close()
		must.OK(t, c.KeepOpen(t.Context(), []*os.File{f, f}))
		fds := must.Get(filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", c.Keeper().PID)))(t)
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); to == path {
				n++
			}
		}
		return n
	}
	for i := range 3 {
		same.As(t, 1, open(), "times that the keeper has the file, after agent ", i+1)
	}
}
