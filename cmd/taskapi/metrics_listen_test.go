package main

import (
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/internal/must"
)

var servedAt = regexp.MustCompile(`served at (http://\S+)/metrics`)

// scrape reads the measurements as Prometheus does.
func scrape(t *testing.T, base string) map[string]*dto.MetricFamily {
	t.Helper()
	answer := must.Get(http.Get(base + "/metrics"))(t)
	defer answer.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%d, %v", answer.StatusCode, err)
	}
	return families
}

// valueOf returns the value of the series of that name that has all the labels, given as name=value, and whether there
// is one.
func valueOf(family *dto.MetricFamily, labels ...string) (float64, bool) {
	for _, m := range family.GetMetric() {
		has := map[string]bool{}
		for _, l := range m.Label {
			has[l.GetName()+"="+l.GetValue()] = true
		}
		all := true
		for _, l := range labels {
			all = all && has[l]
		}
		if all {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue(), true
		}
	}
	return 0, false
}

// TestMetricsListen: Prometheus reads without a token what the operator reads with one, by Nomad's names, and nothing
// else is there.
func TestMetricsListen(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), testJob, "-o", "telemetry.listen=127.0.0.1:0")
	operator := r.operator()
	base := servedAt.FindStringSubmatch(r.stdout.String())[1]
	var families map[string]*dto.MetricFamily
	r.eventually("checked and measured", func() bool { // a busy machine's figures may be too late for an answer
		families = scrape(t, base)
		ok, _ := valueOf(families["taskapi_check_status"], "check=answers", "status=success")
		return ok == 1 && families["nomad_client_allocs_memory_rss"] != nil && families["nomad_client_host_disk_size"] != nil
	})
	labels := []string{"task=server", "alloc_id=" + testAllocID, "task_group=web", "job=demo", "namespace=default"}
	for name, least := range map[string]float64{
		"nomad_client_allocs_memory_rss":        1 << 20,
		"nomad_client_allocs_cpu_total_percent": 0,
		"nomad_client_allocs_running":           1,
		"nomad_client_allocs_restart":           0,
		"nomad_client_allocs_memory_allocated":  1 << 20,
		"taskapi_task_processes":                1,
		"taskapi_task_start_time_seconds":       1e9,
	} {
		if value, ok := valueOf(families[name], labels...); !ok || value < least {
			t.Errorf("%s = %v (there: %t), want at least %v", name, value, ok, least)
		}
	}
	machine := []string{"datacenter=dc1", "node_class=none", "node_pool=default", "node_status=ready",
		"node_scheduling_eligibility=eligible"}
	for _, name := range []string{"nomad_client_host_memory_total", "nomad_client_allocations_running",
		"nomad_client_allocated_memory", "nomad_client_host_disk_size"} {
		if value, ok := valueOf(families[name], machine...); !ok || value <= 0 {
			t.Errorf("%s = %v (there: %t), with %v", name, value, ok, machine)
		}
	}
	if _, ok := valueOf(families["nomad_client_host_cpu_idle"], append(machine, "cpu=cpu0")...); !ok {
		t.Error("nomad_client_host_cpu_idle is missing")
	}
	for _, state := range []string{"state=running", "state=dead"} {
		if value, ok := valueOf(families["taskapi_task_state"], "task=server", state); !ok || value != 1 &&
			state == "state=running" || value != 0 && state == "state=dead" {
			t.Errorf("%s = %v", state, value)
		}
	}
	if value, _ := valueOf(families["nomad_client_allocs_complete"], "task=init"); value != 1 {
		t.Errorf("init is complete %v times", value)
	}
	stats, err := operator.Allocations().Stats(&api.Allocation{ID: testAllocID}, nil)
	if err != nil || stats.Tasks["server"].ResourceUsage.MemoryStats.RSS < 1<<20 {
		t.Errorf("stats = %+v, %v", stats, err)
	}
	if own, err := r.task().Allocations().Stats(&api.Allocation{ID: testAllocID}, nil); err != nil ||
		len(own.Tasks) != len(stats.Tasks) {
		t.Errorf("stats to the task = %+v, %v", own, err)
	}
	if host, err := operator.Nodes().Stats("", nil); err != nil || host.Memory.Total == 0 || len(host.CPU) == 0 ||
		host.AllocDirStats.Size == 0 {
		t.Errorf("host stats = %+v, %v", host, err)
	}

	for _, path := range []string{"/", "/v1/allocations", "/v1/agent/self", "/v1/client/stats", "/v1/allocation/" +
		testAllocID, "/.well-known/jwks.json"} {
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil)
		request.Header.Set("X-Nomad-Token", r.file("operator.token")) // not even with it
		answer := must.Get(http.DefaultClient.Do(request))(t)
		_, _ = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		if answer.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d", path, answer.StatusCode)
		}
	}
	if code := r.stop(); code != 0 {
		t.Errorf("ended with %d", code)
	}
	if _, err := http.Get(base + "/metrics"); err == nil {
		t.Error("it is still served after the end")
	}
}

// TestMetricsListenRefused: an address that can't be had, or is none, ends the run before anything has begun.
func TestMetricsListenRefused(t *testing.T) {
	t.Parallel()
	taken := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	for address, words := range map[string]string{
		taken.Addr().String(): "another program listens there",
		":9100":               "no address with a port",
		"192.0.2.1:0":         "cannot assign requested address",
	} {
		r := startRun(t, shortDir(t), testJob, "-o", "telemetry.listen="+address)
		code := <-r.code
		r.code <- code
		if code != base.ExitUsage || !strings.Contains(r.stderr.String(), words) {
			t.Errorf("%s: %d, %s; want %q", address, code, r.stderr.String(), words)
		}
		if exists(r.layout.Alloc(testAllocID)) {
			t.Errorf("%s: the allocation's directory is there", address)
		}
	}
}

// TestMetricsListenIsRemembered by what resumes the allocation, also in the background, and while something else has
// the address.
func TestMetricsListenIsRemembered(t *testing.T) {
	t.Parallel()
	free := must.Get(net.Listen("tcp", "127.0.0.9:0"))(t) // at which nobody else asks for a port
	address := free.Addr().String()
	free.Close()
	dir := shortDir(t)
	file := jobFile(t, survivorJob)
	taskapi(t, "run", "--data-dir", dir, "--alloc-id", testAllocID, "--detach", "-o", "telemetry.listen="+address, file)
	defer taskapi(t, "stop", "--data-dir", dir, testAllocID)
	if scrape(t, "http://"+address)["nomad_client_allocs_running"] == nil {
		t.Error("nothing runs")
	}
	killDetached(t, dir)
	taskapi(t, "run", "--data-dir", dir, "--alloc-id", testAllocID, "--detach", file)
	if scrape(t, "http://"+address)["nomad_client_allocs_running"] == nil {
		t.Error("nothing runs after a kill")
	}
	taskapi(t, "takeover", "--data-dir", dir)
	if scrape(t, "http://"+address)["nomad_client_allocs_running"] == nil {
		t.Error("nothing runs after an upgrade")
	}

	killDetached(t, dir)
	taken := must.Get(net.Listen("tcp", address))(t)
	defer taken.Close()
	taskapi(t, "run", "--data-dir", dir, "--alloc-id", testAllocID, "--detach", file) // resumes all the same
	if answeringVersion(t, dir) == "" {
		t.Error("nobody looks after the allocation")
	}
}
