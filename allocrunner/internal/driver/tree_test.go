package driver_test

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/driver"
)

// ways are the ways of finding a tree. Without cgroups a process that left its session is known only to a sole parent.
var ways = map[string]driver.Config{
	"cgroup": {},
	"sole":   {NoCgroup: true, Sole: true},
	"shared": {NoCgroup: true},
}

func TestKillTree(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		pids   int  // that the script reports
		sole   bool // not found by session or descent
	}{
		"background child":               {script: `sleep 1000 & echo $! >$FIFO; exit 0`, pids: 1},
		"child of a running task":        {script: `sleep 1000 & echo $! >$FIFO; wait`, pids: 1},
		"own session":                    {script: `setsid sh -c 'echo $$ >$FIFO; exec sleep 1000' & wait`, pids: 1},
		"double fork":                    {script: `(sh -c 'echo $$ >$FIFO; exec sleep 1000' &) ; exit 0`, pids: 1},
		"double fork, own session":       {script: `(setsid sh -c 'echo $$ >$FIFO; exec sleep 1000' &) ; read x; sleep 1; exit 0`, pids: 1, sole: true},
		"ignores signals":                {script: `sh -c 'trap "" INT TERM HUP; echo $$ >$FIFO; while :; do sleep 1; done' & exit 0`, pids: 1},
		"stopped":                        {script: `sh -c 'echo $$ >$FIFO; kill -STOP $$' & exit 0`, pids: 1},
		"a family":                       {script: `for i in 1 2 3 4 5; do sh -c 'sleep 1000 & echo $! >$FIFO; wait' & done; wait`, pids: 5},
		"closed its output, own session": {script: `setsid sh -c 'exec >/dev/null 2>&1; echo $$ >$FIFO; exec sleep 1000' & wait`, pids: 1},
	} {
		for way, cfg := range ways {
			if way == "shared" && c.sole {
				continue
			}
			t.Run(strings.ReplaceAll(name+"/"+way, " ", "_"), func(t *testing.T) {
				e := newLocal(t, cfg)
				r := e.fifo()
				e.start(e.shell("t", c.script))
				if c.sole && !cfg.Sole && e.CgroupDir() == "" {
					t.Skip("no cgroup v2 with cgroup.kill can be made here, and nothing else finds this one")
				}
				var pids []int
				for range c.pids {
					pids = append(pids, readPID(t, r))
				}
				if n := e.killTree("t"); n < c.pids {
					t.Errorf("%d killed besides the first, want at least %d", n, c.pids)
				}
				for _, pid := range pids {
					if alive(pid) {
						t.Errorf("process %d still runs", pid)
						unix.Kill(pid, unix.SIGKILL)
					}
				}
				if n := e.killTree("t"); n != 0 {
					t.Errorf("the second time there were %d more", n)
				}
			})
		}
	}
}

// TestKillTreeSparesOthers: a sibling's processes, and children of this program that are no task's.
func TestKillTreeSparesOthers(t *testing.T) {
	for way, cfg := range ways {
		t.Run(way, func(t *testing.T) {
			e := newLocal(t, cfg)
			r := e.fifo()
			e.start(e.shell("a", `exec sleep 1000`))
			e.start(e.shell("b", `(setsid sh -c 'echo $$ >$FIFO; exec sleep 1000' &) ; exec sleep 1000`))
			orphan := readPID(t, r)
			var stranger *exec.Cmd
			if !cfg.Sole {
				stranger = exec.Command("sleep", "1000")
				if err := stranger.Start(); err != nil {
					t.Fatal(err)
				}
				defer func() { stranger.Process.Kill(); stranger.Wait() }()
			}
			e.killTree("a")
			if !alive(orphan) || stranger != nil && !alive(stranger.Process.Pid) {
				t.Error("KillTree of a killed another's process")
			}
			if err := e.Signal(t.Context(), "b", 0); err != nil {
				t.Error(err)
			}
			unix.Kill(orphan, unix.SIGKILL) // in "shared" it is nobody's
		})
	}
}

// TestAnOrphanIsKnownByItsEnvironment while another task runs.
func TestAnOrphanIsKnownByItsEnvironment(t *testing.T) {
	e := newLocal(t, driver.Config{NoCgroup: true, Sole: true})
	r := e.fifo()
	e.start(e.shell("a", `exec sleep 1000`))
	e.start(e.shell("b", `(setsid sh -c 'echo $$ >$FIFO; exec sleep 1000 >/dev/null 2>&1' &) ; exec sleep 1000`))
	orphan := readPID(t, r)
	if n := e.killTree("b"); n != 1 || alive(orphan) {
		t.Errorf("%d killed, the orphan is alive: %v", n, alive(orphan))
	}
	if err := e.Signal(t.Context(), "a", 0); err != nil {
		t.Error(err)
	}
}

// TestTheLastTaskTakesAllOrphans that a sole parent has, also one without session or environment to be known by.
func TestTheLastTaskTakesAllOrphans(t *testing.T) {
	e := newLocal(t, driver.Config{NoCgroup: true, Sole: true})
	r := e.fifo()
	e.start(e.shell("a", `exec sleep 1000`))
	e.start(e.shell("b", `(env -i FIFO=$FIFO setsid /bin/sh -c 'echo $$ >$FIFO; exec sleep 1000' &) ; exec sleep 1000`))
	orphan := readPID(t, r)
	e.killTree("a")
	e.killTree("b")
	if alive(orphan) {
		t.Error("an orphan outlived all tasks")
		unix.Kill(orphan, unix.SIGKILL)
	}
}

func TestOrphansAreReaped(t *testing.T) {
	e := newLocal(t, driver.Config{Sole: true})
	r := e.fifo()
	e.start(e.shell("t", `(setsid sh -c 'echo $$ >$FIFO' &); exec sleep 1000`))
	pid := readPID(t, r)
	for {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
			break
		}
		pause()
	}
	if err := e.Signal(t.Context(), "t", 0); err != nil {
		t.Errorf("the task itself: %v", err)
	}
}

// TestAStrangersExitIsNotStolen where this program starts other children, too.
func TestAStrangersExitIsNotStolen(t *testing.T) {
	e := newLocal(t, driver.Config{})
	stranger := exec.Command("sh", "-c", "exit 9")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		e.start(e.shell("t", `sleep 1000 & exit 0`))
		e.wait("t")
		e.killTree("t")
	}
	if err := stranger.Wait(); stranger.ProcessState.ExitCode() != 9 {
		t.Errorf("the stranger's exit: %v", err)
	}
}

func TestCgroupsAreRemoved(t *testing.T) {
	e := newLocal(t, driver.Config{})
	e.start(e.shell("t", "exit 0"))
	dir := e.CgroupDir()
	if dir == "" {
		t.Skip("no cgroup v2 with cgroup.kill can be made here")
	}
	e.wait("t")
	if err := os.MkdirAll(dir+"/task.t/made/by/it", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s: %v", dir, err)
	}
}

func TestAnUnusableCgroupIsDoneWithout(t *testing.T) {
	e := newLocal(t, driver.Config{Cgroup: t.TempDir()})
	e.start(e.shell("t", "exit 4"))
	if exit := e.wait("t"); exit.ExitCode != 4 {
		t.Errorf("exit %+v", exit)
	}
}

// TestKillStrays after a supervisor was killed.
func TestKillStrays(t *testing.T) {
	for _, mark := range []string{"NOMAD_ALLOC_ID=" + t.TempDir(), ""} {
		t.Run(fmt.Sprintf("by mark: %v", mark != ""), func(t *testing.T) {
			e := newLocal(t, driver.Config{})
			r := e.fifo()
			spec := e.shell("t", `setsid sh -c 'echo $$ >$FIFO; exec sleep 1000' & exec sleep 1000`)
			if mark != "" {
				spec.Env = append(spec.Env, mark)
			}
			status := e.start(spec)
			child := readPID(t, r)
			dir := ""
			if mark == "" {
				if dir = e.CgroupDir(); dir == "" {
					t.Skip("no cgroup v2 with cgroup.kill can be made here")
				}
			}
			killed, err := driver.KillStrays(t.Context(), dir, mark)
			slices.SortFunc(killed, func(a, b driver.Stray) int { return cmp.Compare(a.PID, b.PID) })
			want := []driver.Stray{{PID: status.PID, Task: "t"}, {PID: child, Task: "t"}}
			if err != nil || !slices.Equal(killed, want) || alive(child) || alive(status.PID) {
				t.Errorf("killed %+v, %v, want %+v; child alive: %v, first alive: %v", killed, err, want, alive(child), alive(status.PID))
			}
			if exit := e.wait("t"); exit.Signal != 9 {
				t.Errorf("exit %+v", exit)
			}
		})
	}
}

// TestKillStraysSparesItsCaller, which may be of the same allocation.
func TestKillStraysSparesItsCaller(t *testing.T) {
	mark := "NOMAD_ALLOC_ID=" + t.TempDir()
	caller := exec.Command(self(), "helper", "strays", mark)
	caller.Env = []string{mark}
	if out, err := caller.Output(); err != nil || string(out) != "[] <nil>\n" {
		t.Errorf("it says %q, %v", out, err)
	}
}

func TestOOMKilled(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]bool{
		"low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\noom_group_kill 0\n": true,
		"low 0\nhigh 0\nmax 12\noom 1\noom_kill 0\noom_group_kill 0\n": false,
		"oom 3\n": false,
		"":        false,
	} {
		if err := os.WriteFile(dir+"/memory.events", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := driver.OOMKilled(dir); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	if driver.OOMKilled("") || driver.OOMKilled("/no/such") {
		t.Error("killed without a cgroup")
	}
}
