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

// metrics answers GET /v1/metrics with the measurements of all processes that run allocations. Series of the same name
// and labels are one: those of the machine are the first process's, and others are added up.
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
		req := (&http.Request{Method: http.MethodGet, Header: http.Header{},
			URL: &url.URL{Path: "/v1/metrics", RawQuery: r.URL.RawQuery}}).WithContext(ctx)
		resp, err := h.Machine.Ask(ctx, alloc.ID, req)
		if err != nil { // it ends
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

// ofMachine reports whether a measurement is of the machine, and the same in each process.
func ofMachine(name string) bool {
	dotted := strings.ReplaceAll(name, "_", ".")
	return strings.HasPrefix(dotted, "nomad.client.host.") || dotted == "nomad.client.uptime"
}

// rest returns the name of what an allocation's part leaves of the machine, empty for other measurements.
func rest(name string) string {
	if strings.HasPrefix(strings.ReplaceAll(name, "_", "."), "nomad.client.allocated.") {
		return strings.Replace(name, "allocated", "unallocated", 1)
	}
	return ""
}

// isRest reports whether a measurement is what the allocations leave of the machine.
func isRest(name string) bool {
	return strings.HasPrefix(strings.ReplaceAll(name, "_", "."), "nomad.client.unallocated.")
}

// sums are values by series. Of the machine's, the first holds; of its rest, the first less what others have.
type sums struct {
	values map[string]float64
	later  bool // this is not the first process
}

// add adds a value to a series, whose key is the name with the rest of it after the name.
func (s *sums) add(name, after string, value float64) (isNew bool) {
	_, known := s.values[name+after]
	switch {
	case !known:
		s.values[name+after] = value
	case ofMachine(name), isRest(name):
	default:
		s.values[name+after] += value
	}
	if left := rest(name); left != "" && s.later {
		if _, there := s.values[left+after]; there {
			s.values[left+after] -= value
		}
	}
	return !known
}

// text is a text for Prometheus, by families.
type text struct {
	sums
	order  []string            // of families
	about  map[string]string   // the comments of each
	series map[string][]string // of each
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
		name, after, labelled := strings.Cut(line[:at], "{")
		if labelled {
			after = "{" + after
		}
		if t.sums.add(name, after, value) {
			t.series[family] = append(t.series[family], name+after)
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
	for _, g := range some.Gauges { // what is allocated comes before the rest, or after it
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
