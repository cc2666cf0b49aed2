package taskenv_test

import (
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/taskenv"
)

// The environment of a task whose driver shows it other paths than the machine's.
func Example() {
	task := &api.Task{Name: "web", Env: map[string]string{"GREETING": "hello from ${NOMAD_TASK_NAME}"}}
	alloc := &api.Allocation{ID: "4b3f5c9a-0000-0000-0000-000000000000", Name: "shop.web[0]", TaskGroup: "web",
		Job: &api.Job{ID: new("shop")}}
	env := taskenv.New(taskenv.Config{Alloc: alloc, Node: api.Node{Datacenter: "dc1"}}).
		WithTask(taskenv.Task{Task: task, Dir: interfaces.TaskDir{LocalDir: "/local"}}).
		With(map[string]string{"TOKEN_FILE": "/secrets/token"})

	for _, name := range []string{"GREETING", "NOMAD_TASK_DIR", "TOKEN_FILE", "NOMAD_SHORT_ALLOC_ID"} {
		fmt.Println(name, env.Get(name))
	}
	fmt.Println(env.ReplaceEnv("in ${node.datacenter}"))
	// Output:
	// GREETING hello from web
	// NOMAD_TASK_DIR /local
	// TOKEN_FILE /secrets/token
	// NOMAD_SHORT_ALLOC_ID 4b3f5c9a
	// in dc1
}
