package dispatch

import (
	"context"
	"path/filepath"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
)

// Hook writes the payload of the job into the file that a task's dispatch_payload block names.
type Hook struct {
	job  *api.Job
	file string // below the task's local directory
}

var _ interfaces.TaskPrestartHook = (*Hook)(nil)

// HookOf returns the hook of a task, nil if the task gets no payload.
func HookOf(job *api.Job, task *api.Task) *Hook {
	if len(job.Payload) == 0 || task.DispatchPayload == nil || task.DispatchPayload.File == "" {
		return nil
	}
	return &Hook{job, task.DispatchPayload.File}
}

// Name returns Nomad's name of the hook.
func (h *Hook) Name() string { return "dispatch_payload" }

// Prestart writes the file before the task's first start. As in Nomad, the task may execute the file.
func (h *Hook) Prestart(_ context.Context, req *interfaces.TaskPrestartRequest) (*interfaces.TaskPrestartResponse,
	error) {
	payload, err := Payload(h.job)
	if err != nil {
		return nil, err
	}
	file := interfaces.File{Path: filepath.Join("local", h.file), Data: payload, Mode: 0o755}
	if err := req.WriteFile(file); err != nil {
		return nil, err
	}
	return &interfaces.TaskPrestartResponse{Done: true}, nil
}
