package processes_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/processes"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/allocrunner/internal/proctree"
	"taskapi/internal/must"
)

// ways are the ways of finding a tree.
var ways = map[string]processes.Config{
	"cgroup":    {},
	"no cgroup": {Config: proctree.Config{NoCgroup: true}},
}

// TestKillTreeSparesOthers: a sibling's processes.
func TestKillTreeSparesOthers(t *testing.T) {
	for way, cfg := range ways {
		t.Run(way, func(t *testing.T) {
			e := newLocal(t, cfg)
			r := e.fifo()
			e.start(e.shell("a", `exec sleep 1000`))
			e.start(e.shell("b", `(setsid sh -c 'echo $$ >$FIFO; exec sleep 1000' &) ; exec sleep 1000`))
			orphan := proctest.ReadPID(t, r)
			e.killTree("a")
			if !proctest.Alive(orphan) {
				t.Error("KillTree of a killed another's process")
			}
			must.OK(t, e.Signal(t.Context(), proctest.Latest(t, e, "b"), 0))
		})
	}
}

// TestAnOrphanIsKnownByItsEnvironment while another task runs.
func TestAnOrphanIsKnownByItsEnvironment(t *testing.T) {
	e := newLocal(t, processes.Config{Config: proctree.Config{NoCgroup: true}})
	r := e.fifo()
	e.start(e.shell("a", `exec sleep 1000`))
	e.start(e.shell("b", `(setsid sh -c 'echo $$ >$FIFO; exec sleep 1000 >/dev/null 2>&1' &) ; exec sleep 1000`))
	orphan := proctest.ReadPID(t, r)
	if n := e.killTree("b"); n != 1 || proctest.Alive(orphan) {
		t.Errorf("%d killed, the orphan is alive: %v", n, proctest.Alive(orphan))
	}
	must.OK(t, e.Signal(t.Context(), proctest.Latest(t, e, "a"), 0))
}

// TestTheLastTaskTakesAllOrphans that the parent has, also one without session or environment to be known by.
func TestTheLastTaskTakesAllOrphans(t *testing.T) {
	e := newLocal(t, processes.Config{Config: proctree.Config{NoCgroup: true}})
	r := e.fifo()
	e.start(e.shell("a", `exec sleep 1000`))
	e.start(e.shell("b", `(env -i FIFO=$FIFO setsid /bin/sh -c 'echo $$ >$FIFO; exec sleep 1000' &) ; exec sleep 1000`))
	orphan := proctest.ReadPID(t, r)
	e.killTree("a")
	e.killTree("b")
	if proctest.Alive(orphan) {
		t.Error("an orphan outlived all tasks")
		unix.Kill(orphan, unix.SIGKILL)
	}
}
