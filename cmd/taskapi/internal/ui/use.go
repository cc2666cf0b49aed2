package ui

import (
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/output"
)

// A chart is chartTime wide, and a unit of its width is a second.
const (
	chartTime   = 2 * time.Minute
	chartHeight = 32
)

// use is what an allocation, under the name "", and its tasks used at a moment.
type use struct {
	at time.Time
	of map[string]usage
}

// usage has CPU in percent of one core, and memory in bytes.
type usage struct{ cpu, memory float64 }

func usageOf(u *api.ResourceUsage) (v usage) {
	if u != nil && u.CpuStats != nil {
		v.cpu = u.CpuStats.Percent
	}
	if u != nil && u.MemoryStats != nil {
		v.memory = float64(u.MemoryStats.RSS)
		if slices.Contains(u.MemoryStats.Measured, "Usage") {
			v.memory = float64(u.MemoryStats.Usage)
		}
	}
	return v
}

// record adds what an allocation uses now, and returns the uses that a chart shows. Nobody measures an allocation that
// nobody looks at.
func (s *Server) record(id string, stats *api.AllocResourceUsage) []use {
	now := use{time.Now(), map[string]usage{"": usageOf(stats.ResourceUsage)}}
	for name, task := range stats.Tasks {
		now.of[name] = usageOf(task.ResourceUsage)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(s.uses[id]), func(u use) bool { // several windows may look at it
		return now.at.Sub(u.at) > chartTime || now.at.Sub(u.at) < time.Second/2
	})
	s.uses[id] = append(all, now)
	return s.uses[id]
}

// chart is a line of values, the latest value, and the chart in words.
type chart struct{ Points, Text, Label string }

// Chart returns the chart of the CPU or the memory of a task, or with an empty name of the allocation.
func (a allocation) Chart(what, task string) (c chart) {
	value, text, most := func(u usage) float64 { return u.cpu }, func(v float64) string { return fmt.Sprintf("%.1f %%", v) }, 10.0
	if what == "memory" {
		value, text = func(u usage) float64 { return u.memory }, func(v float64) string { return output.Bytes(uint64(v)) }
	}
	for _, u := range a.uses {
		most = max(most, value(u.of[task])*1.25)
	}
	for _, u := range a.uses {
		if v, ran := u.of[task]; ran {
			c.Points += fmt.Sprintf("%.1f,%.1f ", (chartTime - time.Since(u.at)).Seconds(), chartHeight-1-value(v)/most*chartHeight)
			c.Text = text(value(v))
			c.Label = fmt.Sprintf("%s in two minutes: now %s, the top is %s", what, c.Text, text(most))
		}
	}
	return c
}
