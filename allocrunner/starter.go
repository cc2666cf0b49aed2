package allocrunner

import (
	"context"
	"fmt"
	"maps"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/driver"
	"taskapi/allocrunner/internal/taskrunner"
)

// starter makes a task ready to start on this machine.
type starter struct {
	runner *Runner
	task   *api.Task
}

var _ taskrunner.Starter = (*starter)(nil)

// Prepare implements taskrunner.Starter.
func (s *starter) Prepare(context.Context) (*interfaces.TaskPrestartRequest, error) {
	user, err := allocdir.LookupUser(s.task.User)
	if err != nil {
		return nil, err
	}
	dir, err := allocdir.BuildTask(s.runner.cfg.Dir, s.task.Name, user)
	if err != nil {
		return nil, fmt.Errorf("task directory: %w", err)
	}
	return &interfaces.TaskPrestartRequest{
		Alloc: s.runner.Alloc(),
		Task:  s.task,
		Dir:   dir,
		User:  user,
		WriteFile: func(path string, data []byte) error {
			return allocdir.WriteFile(dir, path, data, 0o600, int(user.UID), int(user.GID))
		},
	}, nil
}

// Spec implements taskrunner.Starter.
func (s *starter) Spec(_ context.Context, req *interfaces.TaskPrestartRequest, hookEnv map[string]string) (driver.Spec, error) {
	env := s.runner.env(s.task, req.Dir, req.User).With(hookEnv)
	evaluated, err := env.EvalConfig(s.task.Config)
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
		Task: s.task.Name,
		Path: program,
		Args: config.Args,
		Env:  variables,
		Dir:  req.Dir.Dir,
		User: req.User,
		Logs: logSpec(s.task, req.Dir),

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
