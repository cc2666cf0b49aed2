package agent

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers"
)

// usageTimeout is how long the measurements wait for those of the tasks. Without them the rest is answered.
const usageTimeout = 2 * time.Second

// allocMetrics returns what the allocation's tasks use, their states and the results of the checks. Names are Nomad's where it has one.
func (s *wiring) allocMetrics(ctx context.Context) []handlers.Metric {
	alloc := s.runner.Alloc()
	labels := []handlers.Label{
		{Name: "alloc_id", Value: alloc.ID}, {Name: "job", Value: alloc.JobID}, {Name: "namespace", Value: alloc.Namespace}, {Name: "task_group", Value: alloc.TaskGroup},
		{Name: "host", Value: thisNode().name},
	}
	all := stateMetrics(alloc, labels)
	all = append(all, resourceMetrics(alloc, labels)...)
	if usage := s.usage(ctx); usage != nil {
		for _, name := range slices.Sorted(maps.Keys(usage.Tasks)) {
			all = append(all, usageMetrics(usage.Tasks[name], with(labels, "task", name))...)
		}
	}
	results, _ := s.runner.Checks()
	return append(all, checkMetrics(results, labels)...)
}

// usage returns what the tasks use, nil when that can't be had soon.
func (s *wiring) usage(ctx context.Context) *api.AllocResourceUsage {
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	samples, err := s.runner.Stats(ctx, usageTimeout)
	if err != nil {
		return nil
	}
	return <-samples
}

// with returns labels with one more, or two.
func with(labels []handlers.Label, pairs ...string) []handlers.Label {
	all := slices.Clip(labels)
	for pair := range slices.Chunk(pairs, 2) {
		all = append(all, handlers.Label{Name: pair[0], Value: pair[1]})
	}
	return all
}

// nomad returns a measurement that Nomad has, by the parts of its name.
func nomad(labels []handlers.Label, value float64, name ...string) handlers.Metric {
	name = append([]string{"nomad", "client"}, name...)
	return handlers.Metric{Name: strings.Join(name, "_"), Dotted: strings.Join(name, "."), Labels: labels, Value: value}
}

func counter(m handlers.Metric) handlers.Metric {
	m.Counter = true
	return m
}

// oneOf returns a measurement for each value of a label: 1 for the one that holds, 0 for the others.
func oneOf(name string, labels []handlers.Label, label, holds string, values ...string) []handlers.Metric {
	all := make([]handlers.Metric, len(values))
	for i, value := range values {
		all[i] = handlers.Metric{Name: name, Labels: with(labels, label, value), Value: number(value == holds)}
	}
	return all
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// stateMetrics returns the states of the allocation and its tasks. As Nomad's, the counters of running, complete and failed count how often a task
// has come to that; a task starts once more with each restart.
func stateMetrics(alloc *api.Allocation, labels []handlers.Label) []handlers.Metric {
	all := oneOf("taskapi_allocation_status", labels, "status", alloc.ClientStatus,
		api.AllocClientStatusPending, api.AllocClientStatusRunning, api.AllocClientStatusComplete, api.AllocClientStatusFailed)
	if health := alloc.DeploymentStatus; health != nil && health.Healthy != nil {
		all = append(all, handlers.Metric{Name: "taskapi_allocation_healthy", Labels: labels, Value: number(*health.Healthy)})
	}
	for _, name := range slices.Sorted(maps.Keys(alloc.TaskStates)) {
		state, labels := alloc.TaskStates[name], with(labels, "task", name)
		starts := float64(state.Restarts)
		if !state.StartedAt.IsZero() && state.State != "pending" {
			starts++
		}
		dead := state.State == "dead"
		all = append(all,
			counter(nomad(labels, starts, "allocs", "running")),
			counter(nomad(labels, number(dead && !state.Failed), "allocs", "complete")),
			counter(nomad(labels, number(dead && state.Failed), "allocs", "failed")),
			counter(nomad(labels, float64(state.Restarts), "allocs", "restart")))
		all = append(all, oneOf("taskapi_task_state", labels, "state", state.State, "pending", "running", "dead")...)
		if state.State == "running" && !state.StartedAt.IsZero() {
			all = append(all, handlers.Metric{Name: "taskapi_task_start_time_seconds", Labels: labels, Value: float64(state.StartedAt.UnixMilli()) / 1000})
		}
	}
	return all
}

// resourceMetrics returns what the job asks for. taskapi enforces none of it.
func resourceMetrics(alloc *api.Allocation, labels []handlers.Label) []handlers.Metric {
	if alloc.AllocatedResources == nil {
		return nil
	}
	var all []handlers.Metric
	for _, name := range slices.Sorted(maps.Keys(alloc.AllocatedResources.Tasks)) {
		asked, labels := alloc.AllocatedResources.Tasks[name], with(labels, "task", name)
		if asked.Cpu.CpuShares > 0 {
			all = append(all, nomad(labels, float64(asked.Cpu.CpuShares), "allocs", "cpu", "allocated"))
		}
		if asked.Memory.MemoryMB > 0 {
			all = append(all, nomad(labels, float64(asked.Memory.MemoryMB)*(1<<20), "allocs", "memory", "allocated"))
		}
		if asked.Memory.MemoryMaxMB > 0 {
			all = append(all, nomad(labels, float64(asked.Memory.MemoryMaxMB)*(1<<20), "allocs", "memory", "max_allocated"))
		}
	}
	return all
}

// usageMetrics returns what a task uses, as far as it is measured.
func usageMetrics(task *api.TaskResourceUsage, labels []handlers.Label) []handlers.Metric {
	cpu, memory := task.ResourceUsage.CpuStats, task.ResourceUsage.MemoryStats
	all := []handlers.Metric{
		nomad(labels, cpu.Percent, "allocs", "cpu", "total_percent"),
		nomad(labels, cpu.SystemMode, "allocs", "cpu", "system"),
		nomad(labels, cpu.UserMode, "allocs", "cpu", "user"),
		nomad(labels, cpu.TotalTicks, "allocs", "cpu", "total_ticks"),
		{Name: "taskapi_task_processes", Labels: labels, Value: float64(len(task.Pids))},
	}
	for _, m := range []struct {
		measured, name string
		value          uint64
	}{
		{"RSS", "rss", memory.RSS}, {"Cache", "cache", memory.Cache}, {"Swap", "swap", memory.Swap}, {"Usage", "usage", memory.Usage},
		{"Max Usage", "max_usage", memory.MaxUsage}, {"Kernel Usage", "kernel_usage", memory.KernelUsage},
		{"Kernel Max Usage", "kernel_max_usage", memory.KernelMaxUsage},
	} {
		if slices.Contains(memory.Measured, m.measured) {
			all = append(all, nomad(labels, float64(m.value), "allocs", "memory", m.name))
		}
	}
	if slices.Contains(cpu.Measured, "Throttled Periods") {
		all = append(all, nomad(labels, float64(cpu.ThrottledPeriods), "allocs", "cpu", "throttled_periods"),
			nomad(labels, float64(cpu.ThrottledTime), "allocs", "cpu", "throttled_time"))
	}
	return all
}

// checkMetrics returns the latest result of each check.
func checkMetrics(results api.AllocCheckStatuses, labels []handlers.Label) []handlers.Metric {
	var all []handlers.Metric
	for _, id := range slices.Sorted(maps.Keys(results)) {
		r := results[id]
		labels := with(labels, "check", r.Check, "check_id", id, "service", r.Service, "task", r.Task)
		all = append(all, oneOf("taskapi_check_status", labels, "status", r.Status, "success", "failure", "pending")...)
	}
	return all
}
