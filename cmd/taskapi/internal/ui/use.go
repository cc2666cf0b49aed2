package ui

import (
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/output"
)

// A chart is chartTime wide, and a unit of its width is a second.
const chartTime, chartHeight = 2 * time.Minute, 32

// use is what an allocation, under the name "", and its tasks used at a moment: CPU in percent of one core, and memory
// in bytes.
type use struct {
	at time.Time
	of map[string][2]float64
}

func valuesOf(u *api.ResourceUsage) (v [2]float64) {
	if u != nil && u.CpuStats != nil {
		v[0] = u.CpuStats.Percent
	}
	if u != nil && u.MemoryStats != nil {
		v[1] = float64(u.MemoryStats.RSS)
		if slices.Contains(u.MemoryStats.Measured, "Usage") {
			v[1] = float64(u.MemoryStats.Usage)
		}
	}
	return v
}

// record adds what an allocation uses now, and returns the uses that a chart shows. Nobody measures an allocation that
// nobody looks at.
func (s *Server) record(id string, stats *api.AllocResourceUsage) []use {
	now := use{time.Now(), map[string][2]float64{"": valuesOf(stats.ResourceUsage)}}
	for name, task := range stats.Tasks {
		now.of[name] = valuesOf(task.ResourceUsage)
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

// Chart returns the chart of a task, or with an empty name of the allocation: of its CPU (0), or of its memory (1).
func (a allocation) Chart(value int, task string) (c chart) {
	what, most := []string{"CPU", "memory"}[value], []float64{10, 1 << 10}[value]
	text := []func(float64) string{
		func(v float64) string { return fmt.Sprintf("%.1f %%", v) },
		func(v float64) string { return output.Bytes(uint64(v)) },
	}[value]
	for _, u := range a.uses {
		most = max(most, u.of[task][value]*1.25)
	}
	for _, u := range a.uses {
		if v, ran := u.of[task]; ran {
			x, y := (chartTime - time.Since(u.at)).Seconds(), chartHeight-1-v[value]/most*chartHeight
			c.Points += fmt.Sprintf("%.1f,%.1f ", x, y)
			c.Text = text(v[value])
			c.Label = fmt.Sprintf("%s in two minutes: now %s, the top is %s", what, c.Text, text(most))
		}
	}
	return c
}
