// Package scrape writes measurements as JSON in Nomad's shape, and as the text that Prometheus reads. Its callers
// measure; it adds only the library's usual figures of the process.
package scrape

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"taskapi/handlers/apierror"

	"github.com/VictoriaMetrics/metrics"
	"github.com/hashicorp/nomad/api"
)

// Metric is one measurement.
type Metric struct {
	Name    string // as Prometheus spells names: taskapi_door_denied_total
	Dotted  string // as Nomad spells its own in JSON: nomad.client.allocs.memory.rss; empty for Name
	Help    string // the quantity that is measured
	Labels  []Label
	Value   float64
	Counter bool // it only grows; otherwise it is a gauge
}

// Label tells measurements of one name apart.
type Label struct{ Name, Value string }

// prometheus is the format of Prometheus' text. The other format, JSON, has no name.
const prometheus = "prometheus"

// The content types of the formats.
const (
	jsonContent = "application/json"
	openContent = "text/plain; version=0.0.4; charset=utf-8"
)

// Encode returns the present values in a format, and its content type. Errors: apierror.Invalid for an unknown format.
func Encode(
	ctx context.Context, measure func(context.Context) []Metric, format string,
) (content []byte, contentType string, err error) {
	if format != "" && format != prometheus {
		why := fmt.Sprintf("format must be prometheus, or absent for JSON, not %.64q", format)
		return nil, "", apierror.New(apierror.Invalid, why)
	}
	var measured []Metric
	if measure != nil {
		measured = measure(ctx)
	}
	slices.SortStableFunc(measured, func(x, y Metric) int { return strings.Compare(x.Name, y.Name) })
	if format == prometheus {
		return exposition(measured), openContent, nil
	}
	content, err = json.Marshal(struct {
		api.MetricsSummary
		PrecisionGauges []api.GaugeValue // gauges that need more than 32 bits: none
	}{summary(measured, time.Now()), []api.GaugeValue{}})
	return content, jsonContent, err
}

// summary returns the measurements as Nomad's JSON has them. Nomad's cover an interval; these count since the start.
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

// exposition returns the measurements, sorted by name, in Prometheus' text format, with the library's set for the Go
// runtime and the process.
func exposition(measured []Metric) []byte {
	var text bytes.Buffer
	last := ""
	for _, m := range measured {
		if m.Name != last { // once for all series of the name
			last = m.Name
			writeHeader(&text, family{m.Name, m.kind(), m.Help})
		}
		if m.Counter {
			metrics.WriteCounterFloat64(&text, m.series(), m.Value)
		} else {
			metrics.WriteGaugeFloat64(&text, m.series(), m.Value)
		}
	}
	writeProcess(&text)
	return text.Bytes()
}

// kind returns the metric's type. Prometheus wants the ending _total for counters and for nothing else. Nomad's names
// that have it for a gauge, or lack it, are untyped.
func (m Metric) kind() string {
	switch {
	case m.Counter != strings.HasSuffix(m.Name, "_total"):
		return "untyped"
	case m.Counter:
		return "counter"
	}
	return "gauge"
}

// writeHeader writes the lines that come before the series of a metric.
func writeHeader(text *bytes.Buffer, f family) {
	fmt.Fprintf(text, "# HELP %s %s\n# TYPE %s %s\n", f.name, helpEscapes.Replace(f.help), f.name, f.kind)
}

var helpEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`)

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
