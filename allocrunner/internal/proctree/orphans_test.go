package proctree_test

import (
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/proctest"
	"taskapi/allocrunner/internal/proctree"
	"taskapi/internal/must"
	"taskapi/internal/proc"
)

// family returns a task whose processes have neither cgroup nor mark: the first one, and one in its session.
func family(t *testing.T) (*env, proctree.RootProcess, *task, int) {
	t.Helper()
	e := newTrees(t, proctree.Config{NoCgroup: true})
	r := e.fifo()
	task := e.start("t", `env -i FIFO=$FIFO sh -c 'echo $$ >$FIFO; exec sleep 1000' & exec env -i sleep 1000`)
	child := proctest.ReadPID(t, r)
	id, err := proc.Identify(task.pid)
	if err != nil || task.StartTicks() != id.Start {
		t.Fatalf("%v; born at %d, want %+v", err, task.StartTicks(), id)
	}
	return e, proctree.RootProcess{Identity: id, Task: "t", Alive: proc.Now()}, task, child
}

// TestOrphansOfASession are found without cgroup and mark, and so is their root process.
func TestOrphansOfASession(t *testing.T) {
	_, first, task, child := family(t)
	first.Alive = proc.Moment{} // it is there, so nothing else need be known
	killed, err := proctree.KillOrphans(t.Context(), proctree.Hints{Roots: []proctree.RootProcess{first}})
	if err != nil || len(killed) != 2 || killed[0].Task != "t" || killed[1].Task != "t" || proctest.Alive(task.pid) ||
		proctest.Alive(child) {
		t.Errorf("killed %+v, %v; first alive: %v, child alive: %v", killed, err, proctest.Alive(task.pid),
			proctest.Alive(child))
	}
}

// TestOrphansOfASessionWithoutItsLeader are those of the task only when the leader's number can't have been another's
// since.
func TestOrphansOfASessionWithoutItsLeader(t *testing.T) {
	for name, tc := range map[string]struct {
		know   func(*proctree.RootProcess)
		killed bool
	}{
		"just now":                    {func(*proctree.RootProcess) {}, true},
		"before many others":          {func(f *proctree.RootProcess) { f.Alive.Forks = 0 }, false},
		"it is not known when":        {func(f *proctree.RootProcess) { f.Alive = proc.Moment{} }, false},
		"in another PID namespace":    {func(f *proctree.RootProcess) { f.Alive.Space += "0" }, false},
		"before a reboot":             {func(f *proctree.RootProcess) { f.Boot = "another" }, false},
		"the first was started later": {func(f *proctree.RootProcess) { f.Start += 1000 }, false},
		"its start is not known":      {func(f *proctree.RootProcess) { f.Start = 0 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			e, first, task, child := family(t)
			must.OK(t, unix.Kill(task.pid, unix.SIGKILL))
			e.wait(task)
			tc.know(&first)
			found, err := proctree.FindOrphans(proctree.Hints{Roots: []proctree.RootProcess{first}})
			if is := slices.Equal(found, []proctree.Orphan{{PID: child, Task: "t"}}); err != nil || is != tc.killed {
				t.Errorf("found %+v, %v; want the child: %v", found, err, tc.killed)
			}
			_, err = proctree.KillOrphans(t.Context(), proctree.Hints{Roots: []proctree.RootProcess{first}})
			if err != nil || proctest.Alive(child) == tc.killed {
				t.Errorf("the child is alive: %v, %v", proctest.Alive(child), err)
			}
		})
	}
}

// TestAStrangersSession is left alone, though its leader has the number of a task's root process.
func TestAStrangersSession(t *testing.T) {
	stranger := exec.Command("sleep", "1000")
	stranger.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	must.OK(t, stranger.Start())
	defer func() { stranger.Process.Kill(); stranger.Wait() }()
	id := must.Get(proc.Identify(stranger.Process.Pid))(t)
	id.Start-- // it had the number before
	first := proctree.RootProcess{Identity: id, Alive: proc.Now()}
	if killed, err := proctree.KillOrphans(t.Context(),
		proctree.Hints{Roots: []proctree.RootProcess{first}}); err != nil || len(killed) > 0 || !proctest.Alive(id.PID) {
		t.Errorf("killed %+v, %v", killed, err)
	}
}
