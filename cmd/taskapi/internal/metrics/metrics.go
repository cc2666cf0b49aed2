// Package metrics is the list of everything that an agent measures, for GET /v1/metrics and telemetry.listen. Each
// metric is one row, with its name, its sentence for docs/api.md and for HELP, and its value. Names are Nomad's where
// Nomad has the metric.
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

// Sources are the figures from which the metrics are made.
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
	var m measurement
	m.add(ofAuth(s.Auth), nil)
	m.add(ofSockets(s.Sockets), nil)
	m.add(ofRuntime(), nil)
	m.alloc(s)
	m.node(s)
	if s.Audit != nil {
		m.add(ofAudit(*s.Audit), nil)
	}
	for _, hook := range s.Hooks {
		m.add(ofHook(hook), with(nil, "hook", hook.Hook, "step", hook.Step))
	}
	return m.all
}

// metric is one row: a metric with its value, or with a value for each value of its label.
type metric struct {
	name    string // Nomad's names have dots, which are underscores for Prometheus
	doc     string
	counter bool   // it only grows; otherwise it is a gauge
	label   string // empty for one value without a label
	values  []value
}

// value is a metric's value for a label's value. One that is not a number was not measured.
type value struct {
	label  string
	number float64
}

// gauge returns the row of a value that goes up and down.
func gauge[N int | int64 | uint64 | float64](name, doc string, number N) metric {
	return metric{name: name, doc: doc, values: []value{{number: float64(number)}}}
}

// counter returns the row of a value that only grows.
func counter[N int | int64 | uint64 | float64](name, doc string, number N) metric {
	return metric{name: name, doc: doc, counter: true, values: []value{{number: float64(number)}}}
}

// oneOf returns the row of a state: its value is 1 for the label with the present state, and 0 for the labels of the
// other states.
func oneOf(name, label, doc, present string, states ...string) metric {
	row := metric{name: name, doc: doc + ": 1 for the present one, 0 for the others", label: label}
	for _, state := range states {
		row.values = append(row.values, value{state, number(state == present)})
	}
	return row
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// where returns a number, which was not measured if ok is false.
func where[N int64 | uint64 | float64](ok bool, number N) float64 {
	if !ok {
		return math.NaN()
	}
	return float64(number)
}

// measurement collects values.
type measurement struct{ all []scrape.Metric }

// add adds the values of rows, with labels.
func (m *measurement) add(rows []metric, labels []scrape.Label) {
	for _, row := range rows {
		for _, v := range row.values {
			one := scrape.Metric{
				Name: row.exported(), Dotted: row.name, Help: row.doc, Labels: labels, Value: v.number, Counter: row.counter,
			}
			if row.label != "" {
				one.Labels = with(labels, row.label, v.label)
			}
			if !math.IsNaN(v.number) {
				m.all = append(m.all, one)
			}
		}
	}
}

// exported returns the name as Prometheus spells it.
func (m metric) exported() string { return strings.ReplaceAll(m.name, ".", "_") }

// with returns labels and more of them, by name and value.
func with(labels []scrape.Label, pairs ...string) []scrape.Label {
	all := slices.Clip(labels)
	for pair := range slices.Chunk(pairs, 2) {
		all = append(all, scrape.Label{Name: pair[0], Value: pair[1]})
	}
	return all
}
