package handlers

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
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
	Dotted  string // as Nomad spells its own in JSON: nomad.client.allocs.memory.rss; empty for Name
	Labels  []Label
	Value   float64
	Counter bool // it only grows; otherwise it is a gauge
}

// Label tells measurements of one name apart.
type Label struct{ Name, Value string }

// metrics answers GET /v1/metrics: JSON in Nomad's shape, or with ?format=prometheus the text that Prometheus reads.
func (a *API) metrics(ctx context.Context, r *request) (answer, error) {
	query, err := r.values()
	if err != nil {
		return answer{}, err
	}
	encoded, err := encodeMetrics(ctx, a.config.Metrics, query.Get("format"))
	return answer{body: encoded}, err
}

// prometheus is the format of Prometheus' text; the other is JSON, which has no name.
const prometheus = "prometheus"

// encodeMetrics returns what is measured now, in a format. Errors: Invalid for an unknown format.
func encodeMetrics(ctx context.Context, measure func(context.Context) []Metric, format string) (*body, error) {
	if format != "" && format != prometheus {
		return nil, invalid("format must be prometheus, or absent for JSON, not %s", clip(format))
	}
	measured := runtimeMetrics()
	if measure != nil {
		measured = append(measured, measure(ctx)...)
	}
	slices.SortStableFunc(measured, func(x, y Metric) int { return strings.Compare(x.Name, y.Name) })
	if format == prometheus {
		return newBody(exposition(measured), openType), nil
	}
	return encode(struct {
		api.MetricsSummary
		PrecisionGauges []api.GaugeValue // gauges that need more than 32 bits: none
	}{summary(measured, time.Now()), []api.GaugeValue{}})
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
		name := cmp.Or(m.Dotted, m.Name)
		labels := make(map[string]string, len(m.Labels))
		for _, label := range m.Labels {
			labels[label.Name] = label.Value
		}
		if !m.Counter {
			all.Gauges = append(all.Gauges, api.GaugeValue{Name: name, Value: float32(m.Value), DisplayLabels: labels})
			continue
		}
		all.Counters = append(all.Counters, api.SampledValue{
			Name:            name,
			AggregateSample: &api.AggregateSample{Count: int(m.Value), Sum: m.Value, Min: m.Value, Max: m.Value},
			Mean:            m.Value,
			DisplayLabels:   labels,
		})
	}
	return all
}

// exposition returns the measurements, sorted by name, in Prometheus' text format, with the library's set for the Go runtime and the process.
func exposition(measured []Metric) []byte {
	var text bytes.Buffer
	last := ""
	for _, m := range measured {
		if m.Name != last { // once for all series of the name
			last = m.Name
			kind := "gauge"
			if m.Counter {
				kind = "counter"
			}
			fmt.Fprintf(&text, "# TYPE %s %s\n", m.Name, kind)
		}
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
		pairs[i] = label.Name + `="` + labelEscapes.Replace(strings.ToValidUTF8(label.Value, "\uFFFD")) + `"`
	}
	return m.Name + "{" + strings.Join(pairs, ",") + "}"
}
