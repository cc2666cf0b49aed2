// Package metrics is the list of everything that an agent measures, for GET /v1/metrics and --metrics-listen. Each
// metric is one row of a table, with its name, its sentence in docs/api.md and the function that reads its value. Names
// are Nomad's where Nomad has the metric.
package metrics

import (
	"math"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/handlers/scrape"
	"taskapi/socket"
)

// Sources is what is measured from.
type Sources struct {
	Auth     auth.Stats
	Audit    *auth.AuditStats // nil without an audit log
	Sockets  socket.Stats     // the sum over all sockets
	Hooks    []interfaces.HookStat
	Alloc    *api.Allocation
	Checks   api.AllocCheckStatuses
	Usage    *api.AllocResourceUsage // nil while it can't be measured
	Node     *api.Node
	NodeName string         // of the allocation's node
	Host     *api.HostStats // nil while it can't be measured

	Datacenter string
}

// Measure returns the values of all metrics.
func Measure(s Sources) []scrape.Metric {
	all := slices.Concat(measure(authMetrics, s.Auth), measure(socketMetrics, s.Sockets), measureAlloc(s), measureNode(s))
	if s.Audit != nil {
		all = append(all, measure(auditMetrics, *s.Audit)...)
	}
	for _, hook := range s.Hooks {
		all = append(all, measure(hookMetrics, hook, with(nil, "hook", hook.Hook, "step", hook.Step)...)...)
	}
	return all
}

// metric is a row: what is measured of a T.
type metric[T any] struct {
	name    string // Nomad's names have dots, which are underscores for Prometheus
	doc     string
	counter bool   // it only grows; otherwise it is a gauge
	label   string // empty for one value without a label
	values  func(T) []sample
}

// sample is the value of a metric for one value of its label. A value that is not a number was not measured.
type sample struct {
	label string
	value float64
}

// gauge returns the row of a value that goes up and down.
func gauge[T any, N int | int64 | uint64 | float64](name, doc string, value func(T) N) metric[T] {
	return metric[T]{name: name, doc: doc, values: func(of T) []sample { return []sample{{value: float64(value(of))}} }}
}

// counter returns the row of a value that only grows.
func counter[T any, N int | int64 | uint64 | float64](name, doc string, value func(T) N) metric[T] {
	row := gauge(name, doc, value)
	row.counter = true
	return row
}

// oneOf returns the row of a state: its value is 1 for the label with the present state, and 0 for the labels of the
// other states.
func oneOf[T any](name, label, doc string, present func(T) string, states ...string) metric[T] {
	return metric[T]{name: name, doc: doc + ": 1 for the present one, 0 for the others", label: label, values: func(of T) (all []sample) {
		for _, state := range states {
			all = append(all, sample{state, number(state == present(of))})
		}
		return all
	}}
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// where returns a value that is measured where ok is true.
func where[N int64 | uint64 | float64](ok bool, value N) float64 {
	if !ok {
		return math.NaN()
	}
	return float64(value)
}

// measure returns the values that the rows have for a source.
func measure[T any](rows []metric[T], of T, labels ...scrape.Label) (all []scrape.Metric) {
	for _, row := range rows {
		for _, s := range row.values(of) {
			m := scrape.Metric{Name: row.exported(), Dotted: row.name, Labels: labels, Value: s.value, Counter: row.counter}
			if row.label != "" {
				m.Labels = with(labels, row.label, s.label)
			}
			if !math.IsNaN(s.value) {
				all = append(all, m)
			}
		}
	}
	return all
}

// exported returns the name as Prometheus spells it.
func (m metric[T]) exported() string { return strings.ReplaceAll(m.name, ".", "_") }

// with returns labels and more of them, by name and value.
func with(labels []scrape.Label, pairs ...string) []scrape.Label {
	all := slices.Clip(labels)
	for pair := range slices.Chunk(pairs, 2) {
		all = append(all, scrape.Label{Name: pair[0], Value: pair[1]})
	}
	return all
}
