package interfaces_test

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// counter is a hook that gives each process of its task a number, which goes on when another process takes the task
// over.
type counter struct{}

var _ interfaces.TaskPrestartHook = counter{}

func (counter) Name() string { return "counter" }

func (counter) Prestart(_ context.Context,
	req *interfaces.TaskPrestartRequest) (*interfaces.TaskPrestartResponse, error) {
	if req.Restored {
		return nil, nil // it has its number
	}
	count := req.Kept["count"] + "I"
	req.Keep(map[string]string{"count": count})
	return &interfaces.TaskPrestartResponse{Env: map[string]string{"PROCESS_NUMBER": count}}, nil
}

// A hook is called by the runner; this is what it does.
func ExampleTaskPrestartHook() {
	kept := map[string]string{}
	for range 3 {
		response, err := counter{}.Prestart(context.Background(), &interfaces.TaskPrestartRequest{
			Task: &api.Task{Name: "web"}, Kept: kept, Keep: func(k map[string]string) { kept = k },
		})
		fmt.Println(response.Env["PROCESS_NUMBER"], err)
	}
	// Output:
	// I <nil>
	// II <nil>
	// III <nil>
}
