package allocrunner

import (
	"context"
	"fmt"
	"maps"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/driver"
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
	user, err := allocdir.LookupUser(task.User)
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
	env := s.env(req, hookEnv)
	evaluated, err := env.EvalConfig(req.Task.Config)
	if err != nil {
		return driver.Spec{}, &taskrunner.ConfigError{Err: fmt.Errorf("failed to parse config: %w", err)}
	}
	config, err := driver.Parse(maps.Clone(evaluated))
	if err != nil {
		return driver.Spec{}, &taskrunner.ConfigError{Err: fmt.Errorf("failed to parse config: %w", err)}
	}
	variables := config.Scrub(env.List())
	program, err := driver.LookUp(req.Dir.Dir, config.Command, variables)
	if err != nil {
		return driver.Spec{}, err
	}
	spec := driver.Spec{
		Task: req.Task.Name,
		Path: program,
		Args: config.Args,
		Env:  variables,
		Dir:  req.Dir.Dir,
		User: req.User,
		Logs: logSpec(req.Task, req.Dir),

		OOMScoreAdj: config.OOMScoreAdj,
	}
	if config.WorkDir != "" {
		spec.Dir = config.WorkDir
	}
	return spec, nil
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
