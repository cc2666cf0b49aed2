package drivers_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/taskenv"
)

// greeter is a driver whose config block has one key: words, which a task says, and then it has ended.
type greeter struct{}

func (greeter) Name() string                       { return "greeter" }
func (greeter) Capabilities() drivers.Capabilities { return drivers.Capabilities{} }
func (greeter) Fingerprint() drivers.Fingerprint   { return drivers.Fingerprint{} }

func (greeter) Validate(config map[string]any) error {
	if words, _ := config["words"].(string); words == "" || len(config) > 1 {
		return errors.New("words are needed, and nothing else: the task says them")
	}
	return nil
}

func (g greeter) Start(_ context.Context, task drivers.Task) (drivers.Run, error) {
	config, err := task.Env.EvalConfig(task.Task.Config)
	if err == nil {
		err = g.Validate(config)
	}
	if err != nil {
		return nil, &drivers.ConfigError{Err: err}
	}
	fmt.Println(config["words"])
	return greeting{}, nil
}

// Recover finds nothing: no task outlives this program.
func (greeter) Recover(context.Context, drivers.Task, interfaces.Handle) (drivers.Run, error) {
	return nil, drivers.ErrNoRun
}

// greeting is a task that has spoken.
type greeting struct{}

func (greeting) Handle() interfaces.Handle                       { return nil }
func (greeting) Inspect(context.Context) (drivers.Status, error) { return drivers.Status{}, nil }
func (greeting) Wait(context.Context) (interfaces.ExitResult, error) {
	return interfaces.ExitResult{}, nil
}
func (greeting) Stop(context.Context, syscall.Signal, time.Duration) error { return nil }
func (greeting) Destroy(context.Context) (leftover int, err error)         { return 0, nil }

// A driver of one's own, in a registry.
func ExampleDriver() {
	task := api.NewTask("web", "greeter").SetConfig("words", "${NOMAD_TASK_NAME} of ${node.datacenter}")
	alloc := &api.Allocation{ID: "0ddba11", Job: &api.Job{}}
	env := taskenv.New(taskenv.Config{Alloc: alloc, Task: task, Node: api.Node{Datacenter: "dc1"}})

	known := drivers.NewRegistry(greeter{})
	run, err := known.Start(context.Background(), drivers.Task{Task: task, Env: env})
	if err != nil {
		panic(err)
	}
	result, err := run.Wait(context.Background())
	fmt.Println(result.ExitCode, err)

	_, err = known.Get("docker")
	fmt.Println(err)
	// Output:
	// web of dc1
	// 0 <nil>
	// the driver "docker" is not here; there is: greeter
}
