package keeper_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/keeper"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
	"taskapi/internal/proc"
)

// overwriteEnv does to this program's environment what setproctitle does to that of others.
func overwriteEnv() error {
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')'):])) // the first is the second of proc_pid_stat(5)
	var from, to int64
	for i, at := range []*int64{&from, &to} {
		for _, digit := range fields[50-2+i] {
			*at = *at*10 + int64(digit-'0')
		}
	}
	mem, err := os.OpenFile("/proc/self/mem", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	_, err = mem.WriteAt(make([]byte, to-from), from)
	return err
}

// unmarked are tasks that outlive their keeper where there is no cgroup, in whole or in part, and don't show whose they
// are. Each says the number of such a process.
var unmarked = map[string]struct {
	script string
	first  bool // it is the root process
}{
	"another user": {`exec setpriv --reuid 65534 --regid 65534 --clear-groups --reset-env /bin/sh -c ` +
		`'echo $$; exec sleep 1000' >$FIFO`, true},
	"a cleared environment": {`env -i FIFO=$FIFO /bin/sh -c 'echo $$ >$FIFO; exec sleep 1000' & wait`, false},
	"that of an orphan": {`(env -i FIFO=$FIFO /bin/sh -c 'echo $$ >$FIFO; exec sleep 1000' &); exec sleep 1000`,
		false},
	"an environment overwritten": {`$SELF hide & wait`, false},
}

// TestUnmarkedProcessesOfALostKeeper are found by what is known of its tasks' root processes, by the next keeper and by
// the client.
func TestUnmarkedProcessesOfALostKeeper(t *testing.T) {
	proctest.NeedProc(t, os.Geteuid())
	for name, tc := range unmarked {
		for _, by := range []string{"the next", "its client", "its client without a record"} {
			if by == "its client without a record" && !tc.first {
				continue // nobody knows whether the root process had ended by itself before, and its number is another's
			}
			t.Run(name+"/"+by, func(t *testing.T) {
				if name == "another user" && os.Geteuid() != 0 {
					t.Skip("takes root to be somebody else")
				}
				dir := t.TempDir()
				cfg := keeper.Config{Dir: dir, Marker: mark(dir), NoCgroup: true}
				c := start(t, cfg)
				fifo := proctest.Fifo(t, dir)
				if by == "its client without a record" {
					blockRecord(t, dir)
				}
				spec := shell(dir, "t", tc.script)
				spec.Env = append(spec.Env, "SELF=/proc/"+strconv.Itoa(os.Getpid())+"/exe")
				first := identify(t, run(t, c, spec).PID)
				process := identify(t, proctest.ReadPID(t, fifo))
				orphan := name == "that of an orphan"
				for proc.HasEnv(process.PID, mark(dir)) || orphan && !isChild(process.PID, c.Keeper().PID) {
					unix.Poll(nil, 2)
				}
				must.OK(t, unix.Kill(c.Keeper().PID, unix.SIGKILL))
				<-c.Done()
				gone(t, c.Keeper())
				if !process.Runs() {
					t.Fatal("the process has ended with its keeper")
				}
				if by == "the next" {
					closeLater(t, start(t, cfg))
				} else if left, tasks, err := c.Sweep(t.Context(), cfg); err != nil || tasks["t"].PID != first.PID ||
					left["t"] != map[bool]int{true: 1}[process != first] {
					t.Errorf("%v, %+v, %v", left, tasks, err)
				}
				if process.Runs() || first.Runs() {
					t.Errorf("the root process runs: %v, the other: %v", first.Runs(), process.Runs())
					unix.Kill(process.PID, unix.SIGKILL)
				}
			})
		}
	}
}

func isChild(pid, parent int) bool {
	s, err := proc.Read(pid)
	return err == nil && s.Parent == parent
}

// TestAsAnotherUser runs the tests for which it matters as one who is not root.
func TestAsAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("takes root to be somebody else")
	}
	proctest.NeedProc(t, 65534)
	dir := t.TempDir()
	for path := dir; path != os.TempDir() && path != "/"; path = filepath.Dir(path) {
		must.OK(t, os.Chmod(path, 0o777))
	}
	tests := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v",
		"-test.run=^(TestUnmarkedProcessesOfALostKeeper|TestARecordThatCantBeWritten)$")
	tests.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	tests.Dir, tests.Env = dir, []string{"TMPDIR=" + dir, "PATH=" + os.Getenv("PATH")}
	// both tests, and of the first each case but "another user", by the next keeper and by the client
	want := 2 + 2*(len(unmarked)-1)
	if said, err := tests.CombinedOutput(); err != nil || strings.Count(string(said), "--- PASS") != want {
		t.Errorf("%v\n%s", err, said)
	}
}

// blockRecord makes the record impossible to write, as a full disk does. What is there can be removed.
func blockRecord(t *testing.T, dir string) {
	t.Helper()
	for {
		err := os.MkdirAll(filepath.Join(dir, "keeper.json.new", "full"), 0o755)
		if err == nil {
			return
		}
		// else the keeper is just writing
		if !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENOENT) {
			t.Fatal(err)
		}
	}
}

// comeAndGone is the life of a keeper whose task t ends well, and that then ends by itself.
func comeAndGone(t *testing.T, cfg keeper.Config) {
	t.Helper()
	cfg.Idle = time.Millisecond
	c := start(t, cfg)
	run(t, c, shell(cfg.Dir, "t", "exit 0"))
	must.Get(c.Wait(t.Context(), "t"))(t)
	detach(t, c)
	gone(t, c.Keeper())
}

// TestARecordThatCantBeWritten leaves none, not that of an earlier keeper.
func TestARecordThatCantBeWritten(t *testing.T) {
	dir := t.TempDir()
	comeAndGone(t, keeper.Config{Dir: dir})
	blockRecord(t, dir)
	second := start(t, keeper.Config{Dir: dir, Idle: time.Millisecond})
	if exit, err := second.Wait(t.Context(), "t"); err != nil || exit.ExitCode != 0 {
		t.Errorf("%+v, %v; want what the first had written down", exit, err)
	}
	status := run(t, second, shell(dir, "t", "exec sleep 1000"))
	if last, err := keeper.Last(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%+v, %v", last, err)
	}
	must.OK(t, os.RemoveAll(filepath.Join(dir, "keeper.json.new")))
	for { // it is written as soon as it can be, though nothing happens
		if last, err := keeper.Last(dir); err == nil {
			if last.Keeper != second.Keeper() || len(last.Tasks) != 1 || last.Tasks[0].PID != status.PID ||
				last.Tasks[0].Start == 0 {
				t.Errorf("%+v", last)
			}
			return
		}
		unix.Poll(nil, 2)
	}
}

// TestAFullDiskHasNoOldRecord, also when it is really full.
func TestAFullDiskHasNoOldRecord(t *testing.T) {
	dir := smallDisk(t)
	comeAndGone(t, keeper.Config{Dir: dir})
	fill(t, dir)
	second := start(t, keeper.Config{Dir: dir})
	run(t, second, shell(dir, "t", "exec sleep 1000"))
	last, err := keeper.Last(dir)
	if !errors.Is(err, os.ErrNotExist) && (err != nil || last.Keeper != second.Keeper() || last.Tasks[0].Exit != nil) {
		t.Errorf("%+v, %v", last, err)
	}
}

// TestSweepBelievesNoEnd that an earlier keeper has written down: one after it may have been lost.
func TestSweepBelievesNoEnd(t *testing.T) {
	dir := t.TempDir()
	cfg := keeper.Config{Dir: dir, Marker: mark(dir), NoCgroup: true}
	comeAndGone(t, cfg)
	old, err := os.ReadFile(filepath.Join(dir, "keeper.json"))
	if err != nil || !strings.Contains(string(old), `"ExitCode":0`) {
		t.Fatalf("%s, %v", old, err)
	}
	b := begin(t, dir)
	must.OK(t, unix.Kill(b.Keeper().PID, unix.SIGKILL))
	<-b.Done()
	gone(t, b.Keeper())
	must.OK(t, os.WriteFile(filepath.Join(dir, "keeper.json"), old, 0o600))
	_, tasks, err := b.Sweep(t.Context(), cfg)
	if err != nil || tasks["t"].PID != b.task.PID || tasks["t"].Exit != nil {
		t.Errorf("%+v, %v; want nothing of the first keeper's task", tasks, err)
	}
	b.wantGone(t)
}

// TestIdle is as short as an agent needs to be started again, but for one who alone knows how the tasks ended.
func TestIdle(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare     func(t *testing.T, dir string)
		least, most time.Duration
	}{
		"written":     {func(*testing.T, string) {}, 20 * time.Second, time.Minute},
		"not written": {blockRecord, 10 * time.Minute, 11 * time.Minute},
		"written later": {func(t *testing.T, dir string) {
			blockRecord(t, dir)
			time.AfterFunc(5*time.Minute, func() { os.RemoveAll(filepath.Join(dir, "keeper.json.new")) })
		}, 5 * time.Minute, 7 * time.Minute},
		"its directory removed later": {func(_ *testing.T, dir string) {
			time.AfterFunc(time.Second, func() { os.RemoveAll(dir) })
		}, 20 * time.Second, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				tc.prepare(t, dir)
				must.OK(t, keeper.RunIdle(dir))
				if took := time.Since(began); took < tc.least || took > tc.most {
					t.Errorf("it ends after %v, want %v to %v", took, tc.least, tc.most)
				}
			})
		})
	}
}

// TestAKeeperInAnotherPIDNamespace can't be seen. It is said what is to be done, and its tasks, which may be seen, are
// left alone.
func TestAKeeperInAnotherPIDNamespace(t *testing.T) {
	dir := t.TempDir()
	fifo := proctest.Fifo(t, dir)
	self := must.Get(os.Executable())(t)
	if exec.Command("unshare", "--pid", "--fork", "--mount-proc", "true").Run() != nil {
		t.Skip("no PID namespace can be made here")
	}
	there := exec.CommandContext(t.Context(), "unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
		self, "agent", dir, `echo $PPID >$FIFO; exec sleep 1000`)
	must.OK(t, there.Start())
	defer func() {
		there.Process.Kill()
		there.Wait()
		log := must.Get(os.Open(filepath.Join(dir, "keeper.log")))(t)
		defer log.Close()
		if err := unix.Flock(int(log.Fd()), unix.LOCK_EX); err != nil { // the keeper, which writes there, has it to its end
			t.Error(err)
		}
	}()
	proctest.ReadPID(t, fifo)
	runs := func() bool {
		pids := must.Get(proc.PIDs())(t)
		for _, pid := range pids {
			if proc.HasEnv(pid, mark(dir)) {
				return true
			}
		}
		return false
	}
	for !runs() { // not while it executes its program
		unix.Poll(nil, 1)
	}
	for what, do := range map[string]func(keeper.Config) error{
		"open":  func(cfg keeper.Config) error { _, _, err := keeper.Open(t.Context(), cfg); return err },
		"sweep": func(cfg keeper.Config) error { _, err := keeper.Sweep(t.Context(), cfg); return err },
		"end":   func(cfg keeper.Config) error { _, err := keeper.End(t.Context(), cfg); return err },
	} {
		var said bytes.Buffer
		err := do(keeper.Config{Dir: dir, Marker: mark(dir), Logger: slog.New(slog.NewTextHandler(&said, nil))})
		if err == nil || !strings.Contains(err.Error(), "another container or PID namespace") || said.Len() > 0 {
			t.Errorf("%s: %v; said: %s", what, err, said.String())
		}
	}
	if !runs() {
		t.Error("its task was killed")
	}
}
