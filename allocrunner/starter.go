package allocrunner

import (
	"cmp"
	"context"
	"fmt"
	"maps"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/checks"
	"taskapi/allocrunner/internal/driver"
	"taskapi/allocrunner/internal/rawexec"
	"taskapi/allocrunner/internal/taskenv"
	"taskapi/allocrunner/internal/taskrunner"
)

// starter makes a task ready to start on this machine.
type starter struct {
	runner *Runner
	task   string
}

var _ taskrunner.Starter = (*starter)(nil)

// Alloc implements taskrunner.Starter.
func (s *starter) Alloc() *api.Allocation { return s.runner.Alloc() }

// Prepare implements taskrunner.Starter.
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

// Env implements taskrunner.Starter.
func (s *starter) Env(req *interfaces.TaskPrestartRequest, hookEnv map[string]string) interfaces.Env {
	return s.env(req, hookEnv)
}

func (s *starter) env(req *interfaces.TaskPrestartRequest, hookEnv map[string]string) *taskenv.Env {
	return s.runner.env(s.runner.Alloc()).WithTask(taskenv.Task{
		Task: req.Task, User: req.User, Dir: req.Dir, Ports: s.runner.portsOf(req.Task.Name),
	}).With(hookEnv)
}

// Spec implements taskrunner.Starter.
func (s *starter) Spec(_ context.Context, req *interfaces.TaskPrestartRequest, hookEnv map[string]string) (driver.Spec, error) {
	config, surroundings, err := s.surroundings(req, hookEnv)
	if err != nil {
		return driver.Spec{}, err
	}
	program, err := driver.LookUp(req.Dir.Dir, "task", config.Command, surroundings.env)
	if err != nil {
		return driver.Spec{}, err
	}
	return driver.Spec{
		Task: req.Task.Name,
		Path: program,
		Args: config.Args,
		Env:  surroundings.env,
		Dir:  surroundings.dir,
		User: req.User,
		Logs: logSpec(req.Task, req.Dir),

		OOMScoreAdj: config.OOMScoreAdj,
	}, nil
}

// surroundings are what every program of a task finds.
type surroundings struct {
	env []string
	dir string
}

// surroundings evaluates the task's configuration, and says what its process, or a program beside it, finds around it.
func (s *starter) surroundings(req *interfaces.TaskPrestartRequest, hookEnv map[string]string) (rawexec.Config, surroundings, error) {
	env := s.env(req, hookEnv)
	evaluated, err := env.EvalConfig(req.Task.Config)
	if err != nil {
		return rawexec.Config{}, surroundings{}, &taskrunner.ConfigError{Err: fmt.Errorf("failed to parse config: %w", err)}
	}
	config, err := rawexec.Parse(maps.Clone(evaluated))
	if err != nil {
		return rawexec.Config{}, surroundings{}, &taskrunner.ConfigError{Err: fmt.Errorf("failed to parse config: %w", err)}
	}
	return config, surroundings{env: config.Scrub(env.List()), dir: cmp.Or(config.WorkDir, req.Dir.Dir)}, nil
}

// checkOutput is how much of a script check's output is taken, in bytes: more than a check shows of it.
const checkOutput = 4 << 10

// execCheck runs the command of a script check beside its task's process.
func (r *Runner) execCheck(ctx context.Context, task string, command []string) (checks.ExecResult, error) {
	t := r.task(task)
	if t == nil {
		return checks.ExecResult{}, fmt.Errorf("script check of task %q: %w", task, interfaces.ErrTaskNotFound)
	}
	req, hookEnv, ok := t.Launched()
	if !ok {
		return checks.ExecResult{}, fmt.Errorf("script check of task %q: %w", task, interfaces.ErrTaskNotRunning)
	}
	_, around, err := (&starter{r, task}).surroundings(req, hookEnv)
	if err != nil {
		return checks.ExecResult{}, err
	}
	program, err := driver.LookUp(req.Dir.Dir, "check", command[0], around.env)
	if err != nil {
		return checks.ExecResult{}, err
	}
	result, err := r.resources.processes.Exec(ctx, driver.ExecSpec{
		Task: task, Path: program, Args: command[1:], Env: around.env, Dir: around.dir, User: req.User, MaxOutput: checkOutput,
	})
	return checks.ExecResult{Output: result.Output, Code: result.Exit.ExitCode}, err
}

// logSpec is a task's logs block; a task without one has Nomad's defaults.
func logSpec(t *api.Task, dir interfaces.TaskDir) driver.LogSpec {
	logs := api.DefaultLogConfig()
	if t.LogConfig != nil {
		logs = t.LogConfig
	}
	return driver.LogSpec{
		Dir:          dir.LogDir,
		Disabled:     deref(logs.Disabled),
		MaxFiles:     deref(logs.MaxFiles),
		MaxFileBytes: int64(deref(logs.MaxFileSizeMB)) << 20,
	}
}
