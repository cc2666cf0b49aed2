package handlers_test

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"taskapi/handlers"
	"taskapi/handlers/scrape"
)

// measured are measurements as nasty as names from a job file can make them.
func measured(context.Context) []scrape.Metric {
	return []scrape.Metric{
		{Name: "taskapi_x_total", Labels: []scrape.Label{{Name: "task", Value: `a"b\`}}, Value: 3, Counter: true},
		{Name: "nomad_client_allocs_memory_rss", Dotted: "nomad.client.allocs.memory.rss",
			Labels: []scrape.Label{{Name: "task", Value: "new\nline } 1"}}, Value: 1 << 40},
		{Name: "taskapi_x_total", Labels: []scrape.Label{{Name: "task", Value: "\xff"}}, Value: 4, Counter: true},
		{Name: "taskapi_y", Value: 0.5},
	}
}

// parse reads Prometheus' text as Prometheus' own library does.
func parse(t *testing.T, text string) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return families
}

func TestMetricsArePrometheus(t *testing.T) {
	s := newServer(t, newAlloc(t), func(c *handlers.Config) { c.Metrics = measured })
	got := s.do(t, http.MethodGet, "/v1/metrics?format=prometheus", operator, "")
	families := parse(t, got.Body)
	x := families["taskapi_x_total"]
	if x.GetType() != dto.MetricType_COUNTER || len(x.Metric) != 2 {
		t.Fatalf("taskapi_x_total = %v", x)
	}
	if label := x.Metric[0].Label[0]; label.GetValue() != `a"b\` || x.Metric[0].Counter.GetValue() != 3 {
		t.Errorf("taskapi_x_total = %v", x.Metric[0])
	}
	rss := families["nomad_client_allocs_memory_rss"]
	if rss.GetType() != dto.MetricType_GAUGE || rss.Metric[0].Label[0].GetValue() != "new\nline } 1" ||
		rss.Metric[0].Gauge.GetValue() != 1<<40 {
		t.Errorf("nomad_client_allocs_memory_rss = %v", rss)
	}
	for _, name := range []string{"taskapi_y", "go_goroutines", "process_resident_memory_bytes"} {
		if families[name] == nil {
			t.Errorf("there is no %s", name)
		}
	}

	summary, _, err := s.sdk(t, operator).Operator().MetricsSummary(nil)
	if err != nil || !slices.ContainsFunc(summary.Gauges, func(g api.GaugeValue) bool {
		return g.Name == "nomad.client.allocs.memory.rss" && g.DisplayLabels["task"] == "new\nline } 1"
	}) || !slices.ContainsFunc(summary.Counters, func(c api.SampledValue) bool {
		return c.Name == "taskapi_x_total" && c.Count == 3
	}) {
		t.Errorf("as JSON: %+v, %v", summary, err)
	}
}

// TestScrape is every way to ask the handler without a token: it has the measurements and nothing else.
func TestScrape(t *testing.T) {
	isLocal := func(host string) bool { return host != "" && !strings.Contains(host, "example") }
	handler := scrape.Handler(measured, isLocal)
	for _, test := range []struct {
		method, target, host string
		status               int
		contains             string
	}{
		{"GET", "/metrics", "127.0.0.1:9100", 200, "# TYPE taskapi_y gauge\ntaskapi_y 0.5\n"},
		{"HEAD", "/metrics", "localhost:9100", 200, ""},
		{"GET", "/metrics", "LOCALHOST", 200, "# TYPE"},
		{"GET", "/metrics?format=json", "[::1]:9100", 200, "# TYPE taskapi_y gauge"},
		{"GET", "/v1/metrics", "[::1]", 200, `"nomad.client.allocs.memory.rss"`},
		{"GET", "/v1/metrics?format=prometheus", "127.0.0.1", 200, "# TYPE"},
		{"GET", "/v1/metrics?format=xml", "127.0.0.1", 400, "format must be prometheus"},
		{"GET", "/metrics", "evil.example:9100", 403, "for this machine"},
		{"GET", "/metrics", "", 403, "for this machine"},
		{"POST", "/metrics", "127.0.0.1", 405, "Invalid method"},
		{"DELETE", "/v1/metrics", "127.0.0.1", 405, "Invalid method"},
		{"OPTIONS", "/metrics", "127.0.0.1", 405, "Invalid method"},
		{"GET", "/metrics", "localhost.evil.example", 403, "for this machine"},
		{"GET", "/", "127.0.0.1", 404, "resource not found"},
		{"GET", "/metrics/", "127.0.0.1", 404, "resource not found"},
		{"GET", "//metrics", "127.0.0.1", 404, "resource not found"},
		{"GET", "/metrics/../v1/allocations", "127.0.0.1", 404, "resource not found"},
		{"GET", "/v1/allocations", "127.0.0.1", 404, "resource not found"},
		{"GET", "/v1/agent/health", "127.0.0.1", 404, "resource not found"},
		{"PUT", "/v1/jobs", "127.0.0.1", 404, "resource not found"},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(test.method, "http://x/", nil)
		r.URL.Path, r.URL.RawQuery, _ = strings.Cut(test.target, "?")
		r.Host = test.host
		handler.ServeHTTP(w, r)
		if w.Code != test.status || !strings.Contains(w.Body.String(), test.contains) {
			t.Errorf("%s %s of %q: %d %.200q, want %d with %q", test.method, test.target, test.host, w.Code, w.Body, test.status,
				test.contains)
		}
		if test.status == 405 && w.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("%s %s: Allow = %q", test.method, test.target, w.Header().Get("Allow"))
		}
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "http://metrics.example/metrics", nil)
	if scrape.Handler(measured, nil).ServeHTTP(w, r); w.Code != 200 {
		t.Errorf("under a name, where that is allowed: %d", w.Code)
	}
	if families := parse(t, w.Body.String()); len(families) == 0 {
		t.Error("nothing is measured")
	}
}

// TestScrapeFails: a measurement that JSON can't have is a fault of ours, of which a client reads no details.
func TestScrapeFails(t *testing.T) {
	broken := func(context.Context) []scrape.Metric { return []scrape.Metric{{Name: "taskapi_x", Value: math.NaN()}} }
	w := httptest.NewRecorder()
	scrape.Handler(broken, nil).ServeHTTP(w, httptest.NewRequest("GET", "/v1/metrics", nil))
	if w.Code != 500 || w.Body.String() != "internal error\n" {
		t.Errorf("%d %q, want a bare 500", w.Code, w.Body)
	}
}
