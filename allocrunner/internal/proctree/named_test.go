package proctree_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/proctest"
	"taskapi/allocrunner/internal/proctree"
	"taskapi/internal/must"
)

// newNamed returns a Trees whose cgroup has a name; the test is skipped where there is none.
func newNamed(t *testing.T) (e *env, name string) {
	t.Helper()
	name = fmt.Sprintf("test%d", os.Getpid())
	e = newTrees(t, proctree.Config{Name: name})
	e.kill(e.start("probe", "exit 0"))
	if e.CgroupDir() == "" {
		t.Skip("no cgroup can be made here")
	}
	return e, name
}

// TestOrphansOfAName are found in the cgroup by the name alone: nothing was written down, and they hide from all else.
func TestOrphansOfAName(t *testing.T) {
	e, name := newNamed(t)
	r := e.fifo()
	task := e.start("t",
		`env -i FIFO=$FIFO setsid sh -c 'echo $$ >$FIFO; exec env -i sleep 1000' & exec env -i sleep 1000`)
	daemon := proctest.ReadPID(t, r)
	if found, err := proctree.FindOrphans(proctree.Hints{Name: name + "0"}); err != nil || len(found) > 0 {
		t.Errorf("of another name: %+v, %v", found, err)
	}
	killed, err := proctree.KillOrphans(t.Context(), proctree.Hints{Name: name})
	if err != nil || len(killed) != 2 || killed[0].Task != "t" || proctest.Alive(daemon) || proctest.Alive(task.pid) {
		t.Errorf("killed %+v, %v", killed, err)
	}
}

// TestACgroupAloneDecides whose a process is, whatever that says of itself: one with the mark and the name of a task
// that is not in the task's cgroup is left alone, be it another task's or an operator's.
func TestACgroupAloneDecides(t *testing.T) {
	e, name := newNamed(t)
	r := e.fifo()
	const mark = "NOMAD_ALLOC_DIR=/somewhere/of/a/test"
	x := e.start("x", `(NOMAD_TASK_NAME=other setsid sh -c 'echo $$ >$FIFO; exec sleep 1000' &) ; exec sleep 1000`)
	daemon := proctest.ReadPID(t, r)
	other := e.start("other", "exec sleep 1000", mark)
	operators := exec.Command("sleep", "1000")
	operators.Env = []string{mark, "NOMAD_TASK_NAME=other"}
	must.OK(t, operators.Start())
	defer operators.Process.Kill()

	found, err := proctree.FindOrphans(proctree.Hints{Name: name, Marker: mark})
	if err != nil || len(found) != 3 {
		t.Errorf("found %+v, %v; want x, its daemon and the other", found, err)
	}
	e.kill(other)
	if !proctest.Alive(daemon) || !proctest.Alive(x.pid) || !proctest.Alive(operators.Process.Pid) {
		t.Errorf("alive: %v, %v, %v", proctest.Alive(daemon), proctest.Alive(x.pid), proctest.Alive(operators.Process.Pid))
	}
	// else it would be taken for an orphan of the last task's: a parent that owns all children has no other children
	operators.Process.Kill()
	operators.Wait()
	if n := e.kill(x); n != 1 || proctest.Alive(daemon) {
		t.Errorf("%d killed with x, its daemon is alive: %v", n, proctest.Alive(daemon))
	}
}

// TestACgroupOfAnother decides, too: what is in another task's cgroup is that one's, whatever it says of itself, also
// for a task that has none.
func TestACgroupOfAnother(t *testing.T) {
	parent, allow := ownCgroup(t)
	e := runTrees(t, proctree.NewIn(parent, proctree.Config{}))
	r := e.fifo()
	x := e.start("x", `(NOMAD_TASK_NAME=other setsid sh -c 'echo $$ >$FIFO; exec sleep 1000' &) ; exec sleep 1000`)
	daemon := proctest.ReadPID(t, r)
	for !executed(daemon) {
		proctest.Pause()
	}
	allow("2") // those that are there
	other := e.start("other", `(setsid sh -c 'echo $$ >$FIFO; exec sleep 1000' &) ; exec sleep 1000`)
	others := proctest.ReadPID(t, r)
	if other.NoCgroup() == nil {
		t.Fatal("the other one has a cgroup, too")
	}
	for !executed(others) || !executed(other.pid) { // then the shell between them has ended
		proctest.Pause()
	}
	if n := e.kill(other); n != 1 || proctest.Alive(others) || !proctest.Alive(daemon) || !proctest.Alive(x.pid) {
		t.Errorf("%d killed with a task that has no cgroup; alive: its daemon %v, x's %v, x %v", n, proctest.Alive(others),
			proctest.Alive(daemon), proctest.Alive(x.pid))
	}
}

// TestTheMarkerCounts for the tasks that had no cgroup, and for all of them where cgroups can't be had; never for
// another user's processes.
func TestTheMarkerCounts(t *testing.T) {
	_, fences := newNamed(t) // whose parent takes what it has for its own once it kills a task: it comes first
	mark := "NOMAD_ALLOC_DIR=" + t.TempDir()
	bystander := func(task string, uid uint32) int {
		cmd := exec.Command("sleep", "1000")
		cmd.Env = []string{mark, "NOMAD_TASK_NAME=" + task}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if uid != uint32(os.Geteuid()) {
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
		}
		must.OK(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd.Process.Pid
	}
	ours := bystander("t", uint32(os.Geteuid()))
	all := map[int]bool{ours: true}
	if os.Geteuid() == 0 {
		all[bystander("t", 65534)] = false
	}
	for name, tc := range map[string]struct {
		hints proctree.Hints
		want  func(ours bool) bool
	}{
		"cgroups can be had":    {proctree.Hints{}, func(bool) bool { return false }},
		"there are some":        {proctree.Hints{Name: fences, NoCgroup: true}, func(bool) bool { return false }},
		"there were some":       {proctree.Hints{Cgroup: "/gone", NoCgroup: true}, func(bool) bool { return false }},
		"another task had none": {proctree.Hints{Unfenced: []string{"u"}}, func(bool) bool { return false }},
		"its task had none": {proctree.Hints{Name: fences, Unfenced: []string{"u", "t"}}, func(ours bool) bool {
			return ours
		}},
		"none can be had":         {proctree.Hints{NoCgroup: true}, func(ours bool) bool { return ours }},
		"a task's user's as well": {proctree.Hints{NoCgroup: true, Users: []uint32{65534}}, func(bool) bool { return true }},
	} {
		tc.hints.Marker = mark
		found := must.Get(proctree.FindOrphans(tc.hints))(t)
		for pid, own := range all {
			is := slices.ContainsFunc(found, func(o proctree.Orphan) bool { return o.PID == pid })
			if is != tc.want(own) {
				t.Errorf("%s: taken for an orphan: %v (ours: %v)", name, is, own)
			}
		}
	}
}

// TestATerminalIsAnOperators: what has the mark in a terminal that somebody without it has opened is no orphan. In any
// other session it is, also in a terminal that a task has opened.
func TestATerminalIsAnOperators(t *testing.T) {
	dir := t.TempDir()
	e := &env{t: t, dir: dir}
	r := e.fifo()
	mark := "NOMAD_ALLOC_DIR=" + dir
	script := fmt.Sprintf(`%s FIFO=%s sh -c 'echo $$ >$FIFO; exec sleep 1000' & wait`, mark, filepath.Join(dir, "fifo"))
	spared, want := 0, []int{}
	for _, c := range []struct{ terminal, task bool }{{true, false}, {false, false}, {true, true}} {
		cmd := exec.Command("/bin/sh", "-c", script)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if c.terminal {
			cmd.Stdin = newTerminal(t)
			cmd.SysProcAttr.Setctty = true
		}
		if c.task {
			cmd.Env = append(cmd.Env, mark)
		}
		must.OK(t, cmd.Start())
		defer func() { unix.Kill(-cmd.Process.Pid, unix.SIGKILL); cmd.Wait() }()
		pid := proctest.ReadPID(t, r)
		for !executed(pid) {
			proctest.Pause()
		}
		switch {
		case c.task:
			want = append(want, pid, cmd.Process.Pid)
		case c.terminal:
			spared = pid
		default:
			want = append(want, pid)
		}
	}
	killed, err := proctree.KillOrphans(t.Context(), proctree.Hints{Marker: mark, NoCgroup: true})
	pids := []int{}
	for _, orphan := range killed {
		pids = append(pids, orphan.PID)
	}
	slices.Sort(pids)
	slices.Sort(want)
	if err != nil || !slices.Equal(pids, want) || !proctest.Alive(spared) {
		t.Errorf("killed %v, %v; want %v; the operator's is alive: %v", pids, err, want, proctest.Alive(spared))
	}
}

// newTerminal returns the inner end of a terminal.
func newTerminal(t *testing.T) *os.File {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminal can be had here:", err)
	}
	t.Cleanup(func() { master.Close() })
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	must.OK(t, err)
	terminal, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminal can be had here:", err)
	}
	t.Cleanup(func() { terminal.Close() })
	return terminal
}

// executed reports whether the shell has become its program.
func executed(pid int) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.HasPrefix(string(text), "sleep")
}
