package proctree_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/internal/proctest"
	"taskapi/allocrunner/internal/proctree"
	"taskapi/internal/must"
)

// TestMain runs the tests, or is a program that kills orphans: "orphans MARK".
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "orphans" {
		fmt.Println(proctree.KillOrphans(context.Background(), proctree.Hints{Marker: os.Args[2], NoCgroup: true}))
		unix.Exit(0) // os.Exit would let the race detector sleep for a second
	}
	goleak.VerifyTestMain(m)
}

// env is a Trees with a directory. Its tasks end with the test.
type env struct {
	*proctree.Trees
	t      *testing.T
	dir    string
	limits proctree.Limits // of the tasks that are started from now on
	wg     sync.WaitGroup
	tasks  []*task
}

func newTrees(t *testing.T, cfg proctree.Config) *env {
	t.Helper()
	return runTrees(t, proctree.New(cfg))
}

func runTrees(t *testing.T, trees *proctree.Trees) *env {
	t.Helper()
	e := &env{Trees: trees, t: t, dir: t.TempDir()}
	quit := make(chan struct{})
	e.wg.Go(func() { trees.Run(quit) })
	t.Cleanup(func() {
		for _, task := range e.tasks {
			e.kill(task)
		}
		close(quit)
		e.wg.Wait()
		trees.Close()
	})
	return e
}

// task is a tree whose root process is a shell.
type task struct {
	*proctree.Tree
	pid  int
	exit *os.ProcessState // once it has ended
}

// start starts a script; $FIFO is a pipe to say things to the test with.
func (e *env) start(name, script string, entries ...string) *task {
	e.t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must.OK(e.t, err)
	defer null.Close()
	mark := "NOMAD_TASK_NAME=" + name
	task := &task{Tree: e.Task(name, mark, e.limits)}
	first, err := task.Start(func(at proctree.Place) (*os.Process, error) {
		attr := &os.ProcAttr{
			Dir: e.dir, Env: append(entries, "PATH="+os.Getenv("PATH"), mark, "FIFO="+filepath.Join(e.dir, "fifo")),
			Files: []*os.File{null, null, null}, Sys: &syscall.SysProcAttr{Setsid: true},
		}
		if at.Cgroup != nil {
			attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(at.Cgroup.Fd())
		}
		for _, f := range at.Tasks {
			script = "echo 0 >" + f.Name() + "; " + script
		}
		return os.StartProcess("/bin/sh", []string{"/bin/sh", "-c", script}, attr)
	})
	must.OK(e.t, err)
	task.pid = first.Pid
	e.tasks = append(e.tasks, task)
	e.wg.Go(func() {
		task.Wait(func(state *os.ProcessState, err error) {
			if task.exit = state; err != nil {
				e.t.Error(err)
			}
		})
	})
	return task
}

// wait waits until the root process has ended.
func (e *env) wait(task *task) syscall.WaitStatus {
	<-task.Ended()
	return task.exit.Sys().(syscall.WaitStatus)
}

// kill kills the task's tree and counts whom it met.
func (e *env) kill(task *task) int {
	e.t.Helper()
	others := func() ([]*proctree.Tree, bool) {
		for _, other := range e.tasks {
			if other != task && other.Running() {
				return nil, true
			}
		}
		return nil, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // also in Cleanup
	defer cancel()
	met := proctree.Found{}
	if err := task.Kill(ctx, met, others); err != nil {
		e.t.Error(err)
	}
	task.Remove()
	return len(met)
}

// fifo makes the pipe that start names and opens it at once, so that a task's opening of it never waits.
func (e *env) fifo() *bufio.Reader {
	e.t.Helper()
	return proctest.Fifo(e.t, e.dir)
}
