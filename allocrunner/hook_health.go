package allocrunner

import (
	"context"

	"github.com/hashicorp/nomad/api"
)

// healthHook judges the allocation's health, as a deployment would.
type healthHook struct {
	runner *Runner
}

// Name implements interfaces.RunnerHook.
func (h *healthHook) Name() string { return "health" }

func (h *healthHook) observe(*api.Allocation) {}

func (h *healthHook) Postrun(context.Context) error { return nil }
