package allocrunner

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/checks"
	"taskapi/allocrunner/internal/processes"
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
		Alloc: alloc,
		Task:  task,
		Dir:   dir,
		User:  user,
		WriteFile: func(path string, data []byte) error {
			return allocdir.WriteFile(dir, path, data, 0o600, int(user.UID), int(user.GID))
		},
	}, nil
}

func (s *starter) Env(req *interfaces.TaskPrestartRequest, hookEnv map[string]string) interfaces.Env {
	return s.env(req, hookEnv)
}

func (s *starter) env(req *interfaces.TaskPrestartRequest, hookEnv map[string]string) *taskenv.Env {
	return s.runner.env(s.runner.Alloc()).WithTask(taskenv.Task{
		Task: req.Task, User: req.User, Dir: req.Dir, Ports: s.runner.portsOf(req.Task.Name),
	}).With(hookEnv)
}

func (s *starter) Spec(ctx context.Context, req *interfaces.TaskPrestartRequest, given *interfaces.TaskPrestartResponse) (drivers.Spec, error) {
	spec, err := s.build(ctx, req, given, nil)
	spec.Logs = logSpec(req.Task, req.Dir)
	if f := s.runner.cfg.Foreground; f != nil && f.Task == s.task {
		foreground(&spec, f, req.User)
	}
	return spec, err
}

// foreground makes a task's process what it is to be in the foreground.
func foreground(spec *drivers.Spec, f *interfaces.Foreground, user interfaces.User) {
	spec.Path, spec.Args, spec.Dir, spec.Files, spec.TTY = f.Path, f.Args, f.Dir, f.Files, f.TTY
	login := []string{"PATH"}
	if int(user.UID) == os.Geteuid() {
		login = append(login, "HOME", "SHELL", "USER", "LOGNAME")
	}
	spec.Env = slices.DeleteFunc(slices.Clone(spec.Env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains(login, name) && slices.ContainsFunc(f.Env, func(given string) bool { return strings.HasPrefix(given, name+"=") })
	})
	own := map[string]bool{}
	for _, entry := range spec.Env {
		name, _, _ := strings.Cut(entry, "=")
		own[name] = true
	}
	for _, entry := range f.Env {
		if name, _, ok := strings.Cut(entry, "="); ok && name != "" && !own[name] {
			spec.Env = append(spec.Env, entry)
		}
	}
}

// build has the task's driver build the task's process, or that of a program beside it.
func (s *starter) build(
	ctx context.Context, req *interfaces.TaskPrestartRequest, given *interfaces.TaskPrestartResponse, beside []string,
) (drivers.Spec, error) {
	spec, err := s.runner.drivers.Build(ctx, drivers.Task{
		Task: req.Task, Dir: req.Dir, User: req.User, Env: s.env(req, given.Env), Mounts: given.Mounts, Devices: given.Devices, Exec: beside,
	})
	spec.Task = req.Task.Name
	return spec, err
}

// checkOutput is how much of a script check's output is taken, in bytes: more than a check shows of it.
const checkOutput = 4 << 10

// execCheck runs the command of a script check beside its task's process.
func (r *Runner) execCheck(ctx context.Context, task string, command []string) (checks.ExecResult, error) {
	t := r.task(task)
	if t == nil {
		return checks.ExecResult{}, fmt.Errorf("script check of task %q: %w", task, interfaces.ErrTaskNotFound)
	}
	req, given, ok := t.Launched()
	if !ok {
		return checks.ExecResult{}, fmt.Errorf("script check of task %q: %w", task, interfaces.ErrTaskNotRunning)
	}
	spec, err := (&starter{r, task}).build(ctx, req, given, command)
	if err != nil {
		return checks.ExecResult{}, err
	}
	result, err := r.resources.processes.Exec(ctx, processes.ExecSpec{Spec: spec, MaxOutput: checkOutput})
	return checks.ExecResult{Output: result.Output, Code: result.Exit.ExitCode}, err
}

// logSpec returns a task's logs block; a task without one has Nomad's defaults.
func logSpec(t *api.Task, dir interfaces.TaskDir) drivers.LogSpec {
	logs := cmp.Or(t.LogConfig, api.DefaultLogConfig())
	return drivers.LogSpec{
		Dir:          dir.LogDir,
		Disabled:     ptr.Deref(logs.Disabled),
		MaxFiles:     ptr.Deref(logs.MaxFiles),
		MaxFileBytes: int64(ptr.Deref(logs.MaxFileSizeMB)) << 20,
	}
}
