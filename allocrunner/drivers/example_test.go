package drivers_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/taskenv"
)

// shell is a driver whose config block has one key: line, for /bin/sh.
type shell struct{}

func (shell) Name() string                       { return "shell" }
func (shell) Capabilities() drivers.Capabilities { return drivers.Capabilities{} }

func (shell) Fingerprint() drivers.Fingerprint { return drivers.Fingerprint{} }

func (shell) Validate(config map[string]any) error {
	if line, _ := config["line"].(string); line == "" || len(config) > 1 {
		return errors.New("line is needed, and nothing else: it is for /bin/sh")
	}
	return nil
}

func (s shell) Build(_ context.Context, task drivers.Task) (drivers.Spec, error) {
	config, err := task.Env.EvalConfig(task.Task.Config)
	if err == nil {
		err = s.Validate(config)
	}
	if err != nil {
		return drivers.Spec{}, &drivers.ConfigError{Err: err}
	}
	return drivers.Spec{
		Path: "/bin/sh", Args: []string{"-c", config["line"].(string)}, Env: task.Env.List(), Dir: task.Dir.Dir, User: task.User,
	}, nil
}

// A driver of one's own, in a registry.
func ExampleDriver() {
	task := &api.Task{Name: "web", Driver: "shell", Config: map[string]any{"line": "echo ${NOMAD_TASK_NAME} of ${node.datacenter}"}}
	alloc := &api.Allocation{ID: "0ddba11", Job: &api.Job{}}
	env := taskenv.New(taskenv.Config{Alloc: alloc, Task: task, Node: taskenv.Node{Datacenter: "dc1"}})

	known := drivers.NewRegistry(shell{})
	spec, err := known.Build(context.Background(), drivers.Task{Task: task, Env: env, Dir: interfaces.TaskDir{Dir: "/srv/web"}})
	fmt.Println(spec.Path, spec.Args, spec.Dir, err)

	_, err = known.Get("docker")
	fmt.Println(err)
	// Output:
	// /bin/sh [-c echo web of dc1] /srv/web <nil>
	// the driver "docker" is not here; there is: shell
}
