package allocrunner

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/checks"
	"taskapi/allocrunner/internal/proctree"
	"taskapi/allocrunner/internal/taskrunner"
	"taskapi/allocrunner/taskenv"
	"taskapi/internal/ptr"
)

// starter makes a task ready to start on this machine.
type starter struct {
	runner *Runner
	task   string
}

var _ taskrunner.Starter = (*starter)(nil)

func (s *starter) Alloc() *api.Allocation { return s.runner.Alloc() }

func (s *starter) Prepare(context.Context) (*interfaces.TaskPrestartRequest, error) {
	alloc := s.runner.Alloc()
	task := taskOf(alloc, s.task)
	user, err := s.runner.lookupUser(task)
	if err != nil {
		return nil, err
	}
	dir, err := allocdir.BuildTask(s.runner.cfg.Dir, task.Name, user)
	if err != nil {
		return nil, fmt.Errorf("task directory: %w", err)
	}
	return &interfaces.TaskPrestartRequest{
		Alloc:     alloc,
		Task:      task,
		Dir:       dir,
		User:      user,
		Resources: &s.runner.given,
		WriteFile: func(f interfaces.File) error { return allocdir.WriteHookFile(dir, user, f) },
	}, nil
}

// Await waits until processes can be started.
func (s *starter) Await(ctx context.Context) error {
	res := &s.runner.resources
	select {
	case <-res.pending.done:
		return res.await()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *starter) Env(req *interfaces.TaskPrestartRequest, hookEnv map[string]string) interfaces.Env {
	return s.env(req, hookEnv)
}

func (s *starter) env(req *interfaces.TaskPrestartRequest, hookEnv map[string]string) *taskenv.Env {
	return s.runner.env(s.runner.Alloc()).WithTask(taskenv.Task{
		Task: req.Task, User: req.User, Dir: req.Dir,
	}).With(hookEnv)
}

func (s *starter) DriverTask(req *interfaces.TaskPrestartRequest, given *interfaces.TaskPrestartResponse) drivers.Task {
	r := s.runner
	logs := cmp.Or(req.Task.LogConfig, api.DefaultLogConfig())
	task := drivers.Task{
		AllocID: r.cfg.Alloc.ID, Task: req.Task, Dir: req.Dir, User: req.User, Env: s.env(req, given.Env),
		Processes: r.resources.processes,
		Mounts:    slices.Concat(r.given.Mounts, given.Mounts), Devices: slices.Concat(r.given.Devices, given.Devices),
		NetworkNamespace: r.given.NetworkNamespace,
		Ports:            r.ports(),
		NetBindService:   req.User.UID != 0 && r.resources.ports.Privileged(),
		Logs: drivers.LogSpec{
			Dir: req.Dir.LogDir, Disabled: ptr.Deref(logs.Disabled),
			MaxFiles: ptr.Deref(logs.MaxFiles), MaxFileBytes: int64(ptr.Deref(logs.MaxFileSizeMB)) << 20,
		},
	}
	if f := r.cfg.Foreground; f != nil && f.Task == s.task {
		task.Foreground = f
	} else if !r.cfg.Unlimited {
		task.Limits = limitsOf(req.Task.Resources)
		task.Limits.CPUs = interfaces.CPUs(r.Alloc(), s.task)
	}
	return task
}

// limitsOf returns a task's limits, as Nomad's client sets them: memory_max, if given, is the bound and memory the part
// that the task keeps when the machine runs short; -1 is no bound.
func limitsOf(res *api.Resources) (l proctree.Limits) {
	if res == nil {
		return l
	}
	mebibytes := func(n *int) int64 { // a number that is too great for the shift would wrap around
		return int64(min(ptr.Deref(n), math.MaxInt64>>20)) << 20
	}
	memory, most := mebibytes(res.MemoryMB), mebibytes(res.MemoryMaxMB)
	switch {
	case most == 0:
		l.Memory = memory
	case most > 0:
		l.Memory, l.MemoryLow = most, memory
	default:
		l.MemoryLow = memory
	}
	l.CPUShares = int64(taskenv.CPU(res))
	return l
}

// checkOutput is how much of a script check's output is taken, in bytes: more than a check shows of it.
const checkOutput = 4 << 10

// execCheck runs the command of a script check beside its task's process.
func (r *Runner) execCheck(ctx context.Context, task string, command []string) (checks.ExecResult, error) {
	t := r.task(task)
	if t == nil {
		return checks.ExecResult{}, fmt.Errorf("script check of task %q: %w", task, interfaces.ErrTaskNotFound)
	}
	req, given, ok := t.LaunchedBeside()
	run := t.Latest()
	if !ok || run == nil {
		return checks.ExecResult{}, fmt.Errorf("script check of task %q: %w", task, interfaces.ErrTaskNotRunning)
	}
	beside, ok := run.(drivers.Executor)
	if !ok {
		return checks.ExecResult{}, fmt.Errorf("script check of task %q: %w", task, interfaces.ErrNotSupported)
	}
	result, err := beside.Exec(ctx, (&starter{r, task}).DriverTask(req, given),
		drivers.Program{Command: command, MaxOutput: checkOutput})
	return checks.ExecResult{Output: result.Output, Code: result.Exit.ExitCode}, err
}
