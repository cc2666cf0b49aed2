package proc_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/internal/must"
	"taskapi/internal/proc"
	"taskapi/internal/same"
)

// sleeper returns a process that lives until the test kills it, or its end.
func sleeper(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.Env = env
	must.OK(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

// speaker starts a process that has spoken: the kernel shows its environment, which it does only after the exec.
func speaker(t *testing.T, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", "echo; read _")
	cmd.Env = env
	out, err := cmd.StdoutPipe()
	if err == nil {
		_, err = cmd.StdinPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	must.OK(t, err)
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	must.Get(out.Read(make([]byte, 1)))(t)
	return cmd
}

func identify(t *testing.T, pid int) proc.Identity {
	t.Helper()
	id := must.Get(proc.Identify(pid))(t)
	return id
}

// TestIdentity is lost by the end of the process, and not had by another with its number: one that was started at
// another time, or in another life of the machine.
func TestIdentity(t *testing.T) {
	cmd := sleeper(t)
	id := identify(t, cmd.Process.Pid)
	if !id.Runs() || id.Boot == "" || id.Start == 0 {
		t.Fatalf("%+v does not run", id)
	}
	for _, other := range []proc.Identity{
		{PID: id.PID, Start: id.Start + 1, Boot: id.Boot},
		{PID: id.PID, Start: id.Start, Boot: "3a5bfa0c-1d55-4d6b-9d53-1f7cbb2f6c6e"},
		{PID: 1, Start: id.Start, Boot: id.Boot},
		{PID: id.PID},
		{PID: -1, Start: id.Start, Boot: id.Boot},
		{},
	} {
		if other.Runs() || !other.Await(time.Hour) {
			t.Errorf("%+v runs, too", other)
		}
	}
	if id.Await(time.Nanosecond) {
		t.Error("its end was seen before it was")
	}
	must.OK(t, cmd.Process.Kill())
	if !id.Await(time.Hour) || id.Runs() { // a zombie by then
		t.Error("it runs after its end")
	}
	if _, err := proc.Identify(id.PID); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a zombie is identified: %v", err)
	}
	_ = cmd.Wait()
	if _, err := proc.Identify(id.PID); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nobody is identified: %v", err)
	}
}

// TestAStrangerIsNotKilled: the number alone is not enough.
func TestAStrangerIsNotKilled(t *testing.T) {
	cmd := sleeper(t)
	s, err := proc.Read(cmd.Process.Pid)
	if err != nil || s.Parent != os.Getpid() || s.Dead {
		t.Fatalf("%+v, %v", s, err)
	}
	before := s
	before.Start--
	if err := before.Kill(); err != nil {
		t.Error(err)
	}
	if err := s.Signal(0); err != nil || !identify(t, s.PID).Runs() {
		t.Error("the process that had the number later was killed")
	}
	if err := s.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if err := s.Kill(); err != nil {
		t.Errorf("the second time: %v", err)
	}
}

func TestAllAndEnv(t *testing.T) {
	cmd := speaker(t, "A=1", "NOMAD_TASK_NAME=web", "AB=2")
	pid := cmd.Process.Pid
	all, err := proc.All()
	if err != nil || all[pid].Parent != os.Getpid() || all[os.Getpid()].PID != os.Getpid() {
		t.Errorf("%+v, %v", all[pid], err)
	}
	for entry, want := range map[string]bool{"NOMAD_TASK_NAME=web": true, "NOMAD_TASK_NAME=we": false, "A=1": true,
		"B=2": false, "": false} {
		same.As(t, want, proc.HasEnv(pid, entry), entry)
	}
	if got := []string{proc.Env(pid, "NOMAD_TASK_NAME"), proc.Env(pid, "B"), proc.Env(-1, "A")}; !slices.Equal(got,
		[]string{"web", "", ""}) {
		t.Errorf("got %q", got)
	}
}

// TestChildren: a process's children are those of all its threads, the dead ones included, in whatever way the kernel
// lists them. One that has ended has none.
func TestChildren(t *testing.T) {
	var want []int
	for range 3 {
		started := make(chan *exec.Cmd)
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			started <- sleeper(t)
		}()
		want = append(want, (<-started).Process.Pid)
	}
	dead := sleeper(t)
	must.OK(t, dead.Process.Kill())
	want = append(want, dead.Process.Pid)
	for name, children := range map[string]func(int) ([]int, error){"by the kernel": proc.Children,
		"among all processes": proc.ChildrenAmongAll} {
		got, err := children(os.Getpid())
		for _, pid := range want {
			if !slices.Contains(got, pid) {
				t.Errorf("%s: %v, %v; want %d, too", name, got, err, pid)
			}
		}
		if got, err := children(want[0]); len(got) > 0 || err != nil {
			t.Errorf("%s: sleep has %v, %v", name, got, err)
		}
	}
	_ = dead.Wait() // it was killed
	if got, err := proc.Children(dead.Process.Pid); len(got) > 0 || err != nil {
		t.Errorf("what has ended has %v, %v", got, err)
	}
}

// TestReadAll reads a file that is longer than most, as every user of the machine can make one: at a cost that grows
// with its length alone.
func TestReadAll(t *testing.T) {
	env := make([]string, 8)
	for i := range env {
		env[i] = fmt.Sprintf("A%d=", i) + strings.Repeat("x", 100_000)
	}
	name := fmt.Sprintf("/proc/%d/environ", speaker(t, env...).Process.Pid)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, err := proc.ReadAll(name)
	runtime.ReadMemStats(&after)
	if want := strings.Join(env, "\x00") + "\x00"; err != nil || got != want {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 16*uint64(len(got)) {
		t.Errorf("%d bytes of memory for %d bytes", took, len(got))
	}
}

func TestParseStat(t *testing.T) {
	tail := " S 10 20 30 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 987654 0 0"
	for text, want := range map[string]proc.Stat{
		"7 (x) Z 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0": {PID: 7, Parent: 1, Session: 7, Start: 5, Dead: true,
			Threads: 1},
		// other threads run
		"7 (x) Z 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 3 0 5 0 0": {PID: 7, Parent: 1, Session: 7, Start: 5, Threads: 3},
		"7 (x) X 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 0 0 5 0 0": {PID: 7, Parent: 1, Session: 7, Start: 5, Dead: true},
	} {
		if got, err := proc.ParseStat(7, text); err != nil || got != want {
			t.Errorf("%q: got %+v, %v, want %+v", text, got, err, want)
		}
	}
	// A program may call itself what it likes, also what looks like the rest of the line.
	for _, name := range []string{") R 1 1 1 (", "a\nb) Z 0", "((((", "))))", "\\", " ", "x) S 1 2 3 4"} {
		want := proc.Stat{PID: 7, Parent: 10, Session: 30, Start: 987654, Threads: 1}
		if got, err := proc.ParseStat(7, "7 ("+name+")"+tail); err != nil || got != want {
			t.Errorf("%q: got %+v, %v, want %+v", name, got, err, want)
		}
	}
	for _, text := range []string{"", "7", "7 (x)", "7 (x) S 1", "7 (x) S a b c 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0"} {
		if got, err := proc.ParseStat(7, text); err == nil {
			t.Errorf("%q: got %+v", text, got)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("7 (a) b) c) S 10 20 30 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 987654 0 0")
	text := must.Read(f, "/proc/self/stat")
	f.Add(string(text))
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := proc.ParseStat(7, text); err == nil && s.PID != 7 {
			t.Errorf("%q is of process %d", text, s.PID)
		}
	})
}

func TestReadOfNobody(t *testing.T) {
	if _, err := proc.Read(-1); !errors.Is(err, unix.ENOENT) {
		t.Error(err)
	}
}
