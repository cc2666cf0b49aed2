package proctree_test

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/proctest"
	"taskapi/allocrunner/internal/proctree"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// ways are the ways of finding a tree.
var ways = map[string]proctree.Config{
	"cgroup":    {},
	"no cgroup": {NoCgroup: true},
}

func TestKillTree(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		pids   int // that the script reports
	}{
		"background child":        {script: `sleep 1000 & echo $! >$FIFO; exit 0`, pids: 1},
		"child of a running task": {script: `sleep 1000 & echo $! >$FIFO; wait`, pids: 1},
		"own session":             {script: `setsid sh -c 'echo $$ >$FIFO; exec sleep 1000' & wait`, pids: 1},
		"double fork":             {script: `(sh -c 'echo $$ >$FIFO; exec sleep 1000' &) ; exit 0`, pids: 1},
		"double fork, own session": {script: `(setsid sh -c 'echo $$ >$FIFO; exec sleep 1000' &) ; read x; sleep ` +
			`1; exit 0`, pids: 1},
		"ignores signals": {script: `sh -c 'trap "" INT TERM HUP; echo $$ >$FIFO; while :; do sleep 1; ` +
			`done' & exit 0`, pids: 1},
		"stopped": {script: `sh -c 'echo $$ >$FIFO; kill -STOP $$' & exit 0`, pids: 1},
		"a family": {script: `for i in 1 2 3 4 5; do sh -c 'sleep 1000 & echo $! >$FIFO; wait' & ` +
			`done; wait`, pids: 5},
		"closed its output, own session": {script: `setsid sh -c 'exec >/dev/null 2>&1; echo $$ >$FIFO; exec sleep ` +
			`1000' & wait`, pids: 1},
	} {
		for way, cfg := range ways {
			t.Run(strings.ReplaceAll(name+"/"+way, " ", "_"), func(t *testing.T) {
				e := newTrees(t, cfg)
				r := e.fifo()
				task := e.start("t", c.script)
				var pids []int
				for range c.pids {
					pids = append(pids, proctest.ReadPID(t, r))
				}
				if n := e.kill(task); n < c.pids {
					t.Errorf("%d killed besides the first, want at least %d", n, c.pids)
				}
				for _, pid := range pids {
					if proctest.Alive(pid) {
						t.Errorf("process %d still runs", pid)
						unix.Kill(pid, unix.SIGKILL)
					}
				}
				same.As(t, 0, e.kill(task), "more the second time")
			})
		}
	}
}

func TestOrphansAreReaped(t *testing.T) {
	e := newTrees(t, proctree.Config{})
	r := e.fifo()
	task := e.start("t", `(setsid sh -c 'echo $$ >$FIFO' &); exec sleep 1000`)
	pid := proctest.ReadPID(t, r)
	for {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
			break
		}
		proctest.Pause()
	}
	if !task.Running() || !proctest.Alive(task.pid) {
		t.Error("the task itself has ended")
	}
}

func TestCgroupsAreRemoved(t *testing.T) {
	e := newTrees(t, proctree.Config{})
	task := e.start("t", "exit 0")
	dir := e.CgroupDir()
	if dir == "" {
		t.Skip("no cgroup v2 with cgroup.kill can be made here")
	}
	e.wait(task)
	must.OK(t, os.MkdirAll(dir+"/task.t/made/by/it", 0o755))
	e.kill(task)
	if _, err := os.Stat(dir + "/task.t"); !os.IsNotExist(err) {
		t.Errorf("the task's: %v", err)
	}
	e.Close()
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s: %v", dir, err)
	}
}

func TestAnUnusableCgroupIsDoneWithout(t *testing.T) {
	e := runTrees(t, proctree.NewIn(t.TempDir(), proctree.Config{}))
	if exit := e.wait(e.start("t", "exit 4")); exit.ExitStatus() != 4 {
		t.Errorf("exit %+v", exit)
	}
}

// ownCgroup returns a cgroup for Trees to work in, and what sets how many there may be below it, which is a number or
// "max". The test is skipped where there can be none.
func ownCgroup(t *testing.T) (dir string, allow func(cgroups string)) {
	t.Helper()
	t.Run("probe", func(t *testing.T) { // it ends here: a program has one Trees at a time
		probe := newTrees(t, proctree.Config{})
		probe.kill(probe.start("probe", "exit 0"))
		dir = probe.CgroupDir()
	})
	if dir == "" {
		t.Skip("no cgroup v2 with cgroup.kill can be made here")
	}
	parent := filepath.Join(filepath.Dir(dir), fmt.Sprintf("taskapi-test-%d-%s", os.Getpid(), t.Name()))
	must.OK(t, os.Mkdir(parent, 0o755))
	t.Cleanup(func() {
		if err := os.Remove(parent); err != nil {
			t.Error(err)
		}
	})
	return parent, func(cgroups string) {
		t.Helper()
		must.OK(t, os.WriteFile(filepath.Join(parent, "cgroup.max.descendants"), []byte(cgroups), 0))
	}
}

// TestACgroupThatCantBeMade is done without, and said; the next process gets one again, be it that none was ever made
// before, or many.
func TestACgroupThatCantBeMade(t *testing.T) {
	parent, allow := ownCgroup(t)
	e := runTrees(t, proctree.NewIn(parent, proctree.Config{}))
	for i, c := range []struct {
		before func()
		bare   bool
	}{
		{func() { allow("0") }, true},
		{func() { allow("max") }, false},
		{func() { allow("1") }, true}, // the directory of all tasks is there
		{func() { allow("max") }, false},
		{func() { os.Remove(e.CgroupDir()) }, false},
		{func() { os.Remove(e.CgroupDir()); allow("0") }, true},
		{func() { allow("max") }, false},
	} {
		c.before()
		task := e.start("t", "exec sleep 1000")
		inside, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", task.pid))
		if is := !strings.Contains(string(inside), "/task.t\n"); err != nil || is != c.bare ||
			(task.NoCgroup() != nil) != c.bare {
			t.Errorf("%d: without a cgroup: %v, %v; want %v; it says: %v; it is in %s", i, is, err, c.bare, task.NoCgroup(),
				inside)
		}
		e.kill(task)
	}
}

// TestKillOrphans after a supervisor was killed.
func TestKillOrphans(t *testing.T) {
	for _, mark := range []string{"NOMAD_ALLOC_ID=" + t.TempDir(), ""} {
		t.Run(fmt.Sprintf("by mark: %v", mark != ""), func(t *testing.T) {
			e := newTrees(t, proctree.Config{})
			r := e.fifo()
			task := e.start("t", `setsid sh -c 'echo $$ >$FIFO; exec sleep 1000' & exec sleep 1000`, cmp.Or(mark, "UNMARKED=1"))
			child := proctest.ReadPID(t, r)
			dir := ""
			if mark == "" {
				if dir = e.CgroupDir(); dir == "" {
					t.Skip("no cgroup v2 with cgroup.kill can be made here")
				}
			}
			killed, err := proctree.KillOrphans(t.Context(), proctree.Hints{Cgroup: dir, Marker: mark, NoCgroup: true})
			slices.SortFunc(killed, func(a, b proctree.Orphan) int { return cmp.Compare(a.PID, b.PID) })
			want := []proctree.Orphan{{PID: task.pid, Task: "t"}, {PID: child, Task: "t"}}
			if err != nil || !slices.Equal(killed, want) || proctest.Alive(child) || proctest.Alive(task.pid) {
				t.Errorf("killed %+v, %v, want %+v; child alive: %v, first alive: %v", killed, err, want, proctest.Alive(child),
					proctest.Alive(task.pid))
			}
			if exit := e.wait(task); exit.Signal() != unix.SIGKILL {
				t.Errorf("exit %+v", exit)
			}
		})
	}
}

// TestKillOrphansSparesItsCaller, which may be of the same allocation.
func TestKillOrphansSparesItsCaller(t *testing.T) {
	mark := "NOMAD_ALLOC_ID=" + t.TempDir()
	caller := exec.Command("/proc/self/exe", "orphans", mark)
	caller.Env = []string{mark}
	same.As(t, "[] <nil>\n", string(must.Get(caller.Output())(t)), "it says")
}

func TestOOMKilled(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]bool{
		"low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\noom_group_kill 0\n": true,
		"low 0\nhigh 0\nmax 12\noom 1\noom_kill 0\noom_group_kill 0\n": false,
		"oom 3\n": false,
		"":        false,
	} {
		must.OK(t, os.WriteFile(dir+"/memory.events", []byte(text), 0o600))
		same.As(t, want, proctree.OOMKilled(dir), text)
	}
	if proctree.OOMKilled("") || proctree.OOMKilled("/no/such") {
		t.Error("killed without a cgroup")
	}
}

// TestANeighbourThatEndsDuringALook is nobody's orphan: its root process is in the list of the machine's, and runs no
// more when that has been read.
func TestANeighbourThatEndsDuringALook(t *testing.T) {
	e := newTrees(t, proctree.Config{})
	task, neighbour := e.start("task", "exit 0"), e.start("neighbour", "exec sleep 1000")
	e.wait(task)
	var once sync.Once
	e.AfterLook(func() {
		once.Do(func() {
			if err := unix.Kill(neighbour.pid, unix.SIGKILL); err != nil {
				t.Error(err)
			}
			e.wait(neighbour)
			e.AwaitForgotten(neighbour.pid)
		})
	})
	same.As(t, 0, e.kill(task), "processes were left of a task that had started none")
}

// TestAChainOfOrphans each of which starts the next one and ends during a look.
func TestAChainOfOrphans(t *testing.T) {
	e := newTrees(t, proctree.Config{NoCgroup: true})
	r, steps := e.fifo(), filepath.Join(e.dir, "steps")
	must.OK(t, unix.Mkfifo(steps, 0o600))
	step := must.Get(os.OpenFile(steps, os.O_RDWR, 0))(t)
	defer step.Close()
	task := e.start("t", `exec 3<steps; next() { sh -c 'echo $PPID' >$FIFO; read x <&3; next & }; next &`)
	e.wait(task)
	pid, looks := proctest.ReadPID(t, r), 0
	e.AfterLook(func() {
		if looks++; looks > 3 {
			return
		}
		last := pid
		if _, err := step.WriteString("\n"); err != nil {
			t.Error(err)
		}
		for pid = proctest.ReadPID(t, r); proctest.Alive(last); {
			runtime.Gosched()
		}
	})
	if n := e.kill(task); proctest.Alive(pid) {
		t.Errorf("process %d still runs; %d were killed", pid, n)
		_ = unix.Kill(-task.pid, unix.SIGKILL)
	}
}
