package handlers

import (
	"bytes"
	"context"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/hashicorp/nomad/api"
)

// Metric is one measurement.
type Metric struct {
	Name    string // as Prometheus spells names: taskapi_door_denied_total
	Labels  []Label
	Value   float64
	Counter bool // it only grows; otherwise it is a gauge
}

// Label tells measurements of one name apart.
type Label struct{ Name, Value string }

// metrics answers GET /v1/metrics: JSON in Nomad's shape, or with ?format=prometheus the text that Prometheus reads.
func (a *API) metrics(_ context.Context, r *request) (answer, error) {
	query, err := r.values()
	if err != nil {
		return answer{}, err
	}
	measured := runtimeMetrics()
	if a.config.Metrics != nil {
		measured = append(measured, a.config.Metrics()...)
	}
	slices.SortStableFunc(measured, func(x, y Metric) int { return strings.Compare(x.Name, y.Name) })
	switch format := query.Get("format"); format {
	case "":
		return respond(summary(measured, time.Now()))
	case "prometheus":
		return answer{body: newBody(exposition(measured), openType)}, nil
	default:
		return answer{}, invalid("format must be prometheus, or absent for JSON, not %s", clip(format))
	}
}

// runtimeMetrics returns those of the Go runtime that both formats have. Prometheus gets its usual set as well.
func runtimeMetrics() []Metric {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return []Metric{
		{Name: "taskapi_runtime_goroutines", Value: float64(runtime.NumGoroutine())},
		{Name: "taskapi_runtime_heap_bytes", Value: float64(memory.HeapAlloc)},
		{Name: "taskapi_runtime_sys_bytes", Value: float64(memory.Sys)},
		{Name: "taskapi_runtime_gc_total", Value: float64(memory.NumGC), Counter: true},
	}
}

// summary returns the measurements as Nomad's JSON has them. Nomad's are of an interval; these are since the start.
func summary(measured []Metric, now time.Time) api.MetricsSummary {
	all := api.MetricsSummary{
		Timestamp: now.UTC().Format("2006-01-02 15:04:05 +0000 UTC"), // Nomad's
		Gauges:    []api.GaugeValue{},
		Points:    []api.PointValue{},
		Counters:  []api.SampledValue{},
		Samples:   []api.SampledValue{},
	}
	for _, m := range measured {
		labels := make(map[string]string, len(m.Labels))
		for _, label := range m.Labels {
			labels[label.Name] = label.Value
		}
		if !m.Counter {
			all.Gauges = append(all.Gauges, api.GaugeValue{Name: m.Name, Value: float32(m.Value), DisplayLabels: labels})
			continue
		}
		all.Counters = append(all.Counters, api.SampledValue{
			Name:            m.Name,
			AggregateSample: &api.AggregateSample{Count: int(m.Value), Sum: m.Value, Min: m.Value, Max: m.Value},
			Mean:            m.Value,
			DisplayLabels:   labels,
		})
	}
	return all
}

// exposition returns the measurements in Prometheus' text format, with the library's set for the Go runtime and the process.
func exposition(measured []Metric) []byte {
	var text bytes.Buffer
	for _, m := range measured {
		if m.Counter {
			metrics.WriteCounterFloat64(&text, m.series(), m.Value)
		} else {
			metrics.WriteGaugeFloat64(&text, m.series(), m.Value)
		}
	}
	metrics.WriteProcessMetrics(&text)
	return text.Bytes()
}

// labelEscapes are those of the text format: https://prometheus.io/docs/instrumenting/exposition_formats/
var labelEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// series returns the name with its labels: name{label="value"}.
func (m Metric) series() string {
	if len(m.Labels) == 0 {
		return m.Name
	}
	pairs := make([]string, len(m.Labels))
	for i, label := range m.Labels {
		pairs[i] = label.Name + `="` + labelEscapes.Replace(label.Value) + `"`
	}
	return m.Name + "{" + strings.Join(pairs, ",") + "}"
}
