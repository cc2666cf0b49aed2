package proctree_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"

	"taskapi/allocrunner/internal/proctest"
	"taskapi/allocrunner/internal/proctree"
	"taskapi/internal/must"
	"taskapi/internal/proc"
)

// view returns what a neighbour of this process would know of the tasks.
func (e *env) view(tasks map[string]*task) proctree.View {
	v := proctree.View{Supervisor: os.Getpid(), Cgroup: e.CgroupDir()}
	for name, task := range tasks {
		v.Roots = append(v.Roots, proctree.ViewRoot{Task: name, PID: task.pid, Start: task.StartTicks(),
			Fenced: task.NoCgroup() == nil, Marker: "NOMAD_TASK_NAME=" + name})
	}
	return v
}

func survey(t *testing.T, v proctree.View) map[string][]int {
	t.Helper()
	trees := must.Get(proctree.Survey(v))(t)
	pids := map[string][]int{}
	for task, members := range trees {
		for _, m := range members {
			pids[task] = append(pids[task], m.PID)
		}
		slices.Sort(pids[task])
	}
	return pids
}

// TestSurvey: each tree has its root process, the children, and a daemon that has left its parent and its session, and
// nobody of another's.
func TestSurvey(t *testing.T) {
	for name, cfg := range map[string]proctree.Config{
		"with cgroups": {}, "without": {NoCgroup: true},
	} {
		t.Run(name, func(t *testing.T) {
			e := newTrees(t, cfg)
			said := e.fifo()
			const script = `sleep 1000 & echo $! > $FIFO; (setsid sh -c 'echo $$ > $FIFO; exec sleep 1000' &); wait`
			a := e.start("a", script)
			children := []int{a.pid, proctest.ReadPID(t, said), proctest.ReadPID(t, said)}
			b := e.start("b", `echo $$ > $FIFO; exec sleep 1000`)
			proctest.ReadPID(t, said)
			for stillHasParent(t, children[1:]) || !isSleep(t, children[2]) {
				proctest.Pause()
			}
			slices.Sort(children)
			got := survey(t, e.view(map[string]*task{"a": a, "b": b}))
			if !slices.Equal(got["a"], children) || !slices.Equal(got["b"], []int{b.pid}) {
				t.Errorf("survey = %v; want %v of a and %d of b", got, children, b.pid)
			}

			late := e.view(map[string]*task{"a": a})
			late.Roots[0].Start++ // the number is another's
			if cfg.NoCgroup {
				if got := survey(t, late); len(got["a"]) > 0 {
					t.Errorf("processes of one that has got the number since: %v", got)
				}
			}
		})
	}
}

// stillHasParent reports whether one of the processes still has a parent that is not this process or a task. isSleep
// reports whether a process has become its sleep: one that is becoming it has no environment to be recognised by.
func isSleep(t *testing.T, pid int) bool {
	t.Helper()
	name := must.Read(t, fmt.Sprintf("/proc/%d/comm", pid))
	environment := must.Read(t, fmt.Sprintf("/proc/%d/environ", pid))
	return string(name) == "sleep\n" && len(environment) > 0
}

func stillHasParent(t *testing.T, pids []int) bool {
	t.Helper()
	for _, pid := range pids {
		p := must.Get(proc.Read(pid))(t)
		parent, err := proc.Read(p.Parent)
		if err == nil && p.Parent != os.Getpid() && parent.Parent != os.Getpid() {
			return true
		}
	}
	return false
}

// TestSurveyOfManyThatVanish: processes that end while they are looked at are no error.
func TestSurveyOfManyThatVanish(t *testing.T) {
	for name, cfg := range map[string]proctree.Config{"with cgroups": {}, "without": {NoCgroup: true}} {
		t.Run(name, func(t *testing.T) {
			e := newTrees(t, cfg)
			a := e.start("a", `while :; do (:) & (:) & (:) & wait; done`)
			v := e.view(map[string]*task{"a": a})
			for i := range 50 {
				if got := survey(t, v)["a"]; !slices.Contains(got, a.pid) {
					t.Fatalf("look %d: the root process %d is not in %v", i, a.pid, got)
				}
			}
			e.kill(a)
			if got := survey(t, v); len(got["a"]) > 0 {
				t.Errorf("survey of what has ended = %v", got)
			}
		})
	}
}

// TestSurveyInsideCgroups takes in what a task has put into cgroups of its own below its own.
func TestSurveyInsideCgroups(t *testing.T) {
	proctest.NeedRoot(t)
	e := newTrees(t, proctree.Config{})
	a := e.start("a", `exec sleep 1000`)
	if a.NoCgroup() != nil {
		t.Skip("no cgroup: ", a.NoCgroup())
	}
	v := e.view(map[string]*task{"a": a})
	below := v.CgroupOf(v.Roots[0]) + "/below"
	must.OK(t, os.Mkdir(below, 0o755))
	must.OK(t, os.WriteFile(below+"/cgroup.procs", []byte(strconv.Itoa(a.pid)), 0))
	if got := survey(t, v); !slices.Equal(got["a"], []int{a.pid}) {
		t.Errorf("survey = %v, want %d", got, a.pid)
	}
}
