package machine

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/internal/route"
)

// metrics answers GET /v1/metrics with the measurements of all processes that run allocations. Each series appears
// once. A series about the machine has the first process's value; any other series has the sum of all values.
func (h *handlers) metrics(ctx context.Context, r *route.Request) (route.Answer, error) {
	format := r.Query().Get("format")
	if format != "" && format != "prometheus" {
		return route.Answer{}, route.Invalid("format must be prometheus, or left out for JSON, not %s", route.Clip(format))
	}
	if err := r.EnterMaking(ctx); err != nil {
		return route.Answer{}, err
	}
	all, err := h.Machine.Allocations(ctx)
	if err != nil {
		return route.Answer{}, fmt.Errorf("measure: %w", err)
	}
	text, numbers := newText(), newNumbers()
	for _, alloc := range all {
		if alloc.ClientTerminalStatus() {
			continue
		}
		resp, err := h.Machine.Ask(ctx, alloc.ID, &http.Request{Method: http.MethodGet, Header: http.Header{},
			URL: &url.URL{Path: "/v1/metrics", RawQuery: r.URL.RawQuery}})
		if err != nil { // the allocation is ending
			continue
		}
		content, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		resp.Body.Close()
		switch {
		case err != nil || resp.StatusCode != http.StatusOK:
		case format != "":
			text.add(string(content))
		default:
			numbers.add(content)
		}
	}
	if format != "" {
		return route.Answer{Body: route.NewBody([]byte(text.String()), prometheusType)}, nil
	}
	return route.Respond(numbers.answer())
}

var prometheusType = []string{"text/plain; version=0.0.4; charset=utf-8"}

// isMachines reports whether each process measures the same value, because the measurement is about the machine: also
// about what is not allocated of it, from which a process subtracts its own part alone.
func isMachines(name string) bool {
	dotted := strings.ReplaceAll(name, "_", ".")
	return strings.HasPrefix(dotted, "nomad.client.host.") || dotted == "nomad.client.uptime" ||
		strings.HasPrefix(dotted, "nomad.client.unallocated.")
}

// sums are values by series.
type sums struct {
	values map[string]float64
	later  bool // a process has been added before this one
}

// add adds a value to the series with a name and labels. What a later process has allocated is subtracted from what the
// first process has found unallocated.
func (s *sums) add(name, labels string, value float64) (isNew bool) {
	_, known := s.values[name+labels]
	switch {
	case !known:
		s.values[name+labels] = value
	case !isMachines(name):
		s.values[name+labels] += value
	}
	if strings.HasPrefix(strings.ReplaceAll(name, "_", "."), "nomad.client.allocated.") && s.later {
		left := strings.Replace(name, "allocated", "unallocated", 1) + labels
		if _, there := s.values[left]; there {
			s.values[left] -= value
		}
	}
	return !known
}

// text is a text for Prometheus, by families.
type text struct {
	sums
	order  []string            // of the families
	about  map[string]string   // the comments of each family
	series map[string][]string // of each family
}

func newText() *text {
	return &text{sums: sums{values: map[string]float64{}}, about: map[string]string{}, series: map[string][]string{}}
}

// add adds another text. In it, the series of a family follow its comments.
func (t *text) add(content string) {
	family, first := "", map[string]bool{}
	for line := range strings.Lines(content) {
		if fields := strings.Fields(line); strings.HasPrefix(line, "#") && len(fields) > 2 {
			family = fields[2]
			if !slices.Contains(t.order, family) {
				t.order, first[family] = append(t.order, family), true
			}
			if first[family] {
				t.about[family] += line
			}
			continue
		}
		at := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		if at < 0 {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64)
		if err != nil {
			continue
		}
		series := line[:at]
		name, _, _ := strings.Cut(series, "{")
		if t.sums.add(name, series[len(name):], value) {
			t.series[family] = append(t.series[family], series)
		}
	}
	t.later = true
}

func (t *text) String() string {
	var b strings.Builder
	for _, family := range t.order {
		b.WriteString(t.about[family])
		for _, series := range t.series[family] {
			b.WriteString(series + " " + strconv.FormatFloat(t.values[series], 'g', -1, 64) + "\n")
		}
	}
	return b.String()
}

// numbers are measurements in Nomad's JSON.
type numbers struct {
	sums
	all api.MetricsSummary
}

func newNumbers() *numbers {
	return &numbers{sums{values: map[string]float64{}}, api.MetricsSummary{
		Gauges: []api.GaugeValue{}, Points: []api.PointValue{}, Counters: []api.SampledValue{}, Samples: []api.SampledValue{},
	}}
}

// key returns the labels of a series as a text.
func key(labels map[string]string) string {
	text, _ := json.Marshal(labels) // of a map of texts it can't fail
	return string(text)
}

// add adds the measurements of one process.
func (n *numbers) add(content []byte) {
	var some api.MetricsSummary
	if json.Unmarshal(content, &some) != nil {
		return
	}
	n.all.Timestamp = max(n.all.Timestamp, some.Timestamp)
	for _, g := range some.Gauges {
		if n.sums.add(g.Name, key(g.DisplayLabels), float64(g.Value)) {
			n.all.Gauges = append(n.all.Gauges, g)
		}
	}
	for _, c := range some.Counters {
		if n.sums.add(c.Name, key(c.DisplayLabels), c.Mean) {
			n.all.Counters = append(n.all.Counters, c)
		}
	}
	n.later = true
}

// answer returns the sums.
func (n *numbers) answer() any {
	for i, g := range n.all.Gauges {
		n.all.Gauges[i].Value = float32(n.values[g.Name+key(g.DisplayLabels)])
	}
	for i, c := range n.all.Counters {
		sum := n.values[c.Name+key(c.DisplayLabels)]
		n.all.Counters[i].AggregateSample = &api.AggregateSample{Count: int(sum), Sum: sum, Min: sum, Max: sum}
		n.all.Counters[i].Mean = sum
	}
	return struct {
		api.MetricsSummary
		PrecisionGauges []api.GaugeValue
	}{n.all, []api.GaugeValue{}}
}
