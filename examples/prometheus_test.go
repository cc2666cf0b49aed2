package examples_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// dashboard is the part of Grafana's JSON that asks Prometheus.
type dashboard struct {
	Panels []struct {
		Title   string
		Targets []struct{ Expr string }
	}
}

// metricName matches the names of metrics in an expression. Labels and functions have none of these beginnings.
var metricName = regexp.MustCompile(`\b(?:taskapi|nomad|process|go)_\w+`)

// TestPrometheusNames: every metric in the alert rules and the dashboard is one that taskapi has.
func TestPrometheusNames(t *testing.T) {
	t.Parallel()
	metrics := measuredMetrics(t, startMeasured(t))
	for _, file := range []string{"prometheus/alerts.yml", "prometheus/dashboard.json"} {
		text := must.Read(t, file)
		found := metricName.FindAllString(string(text), -1)
		if len(found) == 0 {
			t.Errorf("%s names no metric", file)
		}
		for _, name := range found {
			if !strings.Contains(metrics, "\n# TYPE "+name+" ") {
				t.Errorf("%s: there is no metric %s", file, name)
			}
		}
	}
}

// TestPrometheus runs Prometheus with the example's configuration against an allocation. promtool accepts the
// configuration, the rules and their tests, and each expression of the dashboard finds something.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"prometheus", "promtool"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("prometheus and promtool are not installed")
		}
	}
	for _, args := range [][]string{
		{"check", "config", "prometheus.yml"}, {"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"},
	} {
		promtool := exec.CommandContext(t.Context(), "promtool", args...)
		promtool.Dir = "prometheus"
		if out, err := promtool.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	target := startMeasured(t)
	base := startPrometheus(t, target)

	// An allocation's metrics keep their job under another name, since the scrape has one of its own.
	if !polltest.Until(func() bool { return len(query(t, base, `up{job="taskapi"} == 1`)) > 0 }) {
		t.Fatal("Prometheus does not scrape the allocation")
	}
	if found := query(t, base, `taskapi_allocation_status{job="taskapi",exported_job="hello",status="running"}`); len(
		found) != 1 {
		t.Errorf("the allocation's status is %v", found)
	}
	text := must.Read(t, "prometheus/dashboard.json")
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil || len(d.Panels) == 0 {
		t.Fatalf("the dashboard has no panels: %v", err)
	}
	fill := strings.NewReplacer("$job", ".*", "$instance", ".*", "$__rate_interval", "1h")
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			expr := fill.Replace(target.Expr)
			// A rate needs two samples, and a health takes some seconds.
			if !polltest.Until(func() bool { return len(query(t, base, expr)) > 0 }) {
				t.Errorf("%s: %s finds nothing", panel.Title, expr)
			}
		}
	}
}

// startMeasured runs hello.nomad.hcl, which is stopped when the test ends, and returns where its metrics are.
func startMeasured(t *testing.T) string {
	t.Helper()
	data := must.ShortDir(t)
	program := filepath.Join(programs(t), "taskapi")
	out, err := exec.Command(program, "run", "-d", "--data-dir", data, "-o", "telemetry.listen=127.0.0.1:0",
		"-o", "audit.path="+filepath.Join(data, "audit.log"), "hello.nomad.hcl").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command(program, "stop", "--data-dir", data, "--now").Run() })
	logs, err := filepath.Glob(filepath.Join(data, "allocs", "*", "taskapi.log"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("%v, %v", logs, err)
	}
	log, err := os.ReadFile(logs[0])
	served := regexp.MustCompile(`served at http://(\S+)/metrics`).FindSubmatch(log)
	if err != nil || served == nil {
		t.Fatalf("the log names no address: %v\n%s", err, log)
	}
	return string(served[1])
}

// measuredMetrics returns what the target serves, once it has measured the tasks and decided on their health.
func measuredMetrics(t *testing.T, target string) string {
	t.Helper()
	for deadline := time.Now().Add(polltest.Deadline()); ; time.Sleep(100 * time.Millisecond) {
		answer, err := http.Get("http://" + target + "/metrics")
		must.OK(t, err)
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		must.OK(t, err)
		if bytes.Contains(text, []byte("\nnomad_client_allocs_memory_rss{")) &&
			bytes.Contains(text, []byte("\ntaskapi_allocation_healthy{")) || time.Now().After(deadline) {
			return "\n" + string(text)
		}
	}
}

// startPrometheus runs Prometheus with the example's configuration, but for the target, and returns its address.
func startPrometheus(t *testing.T, target string) string {
	t.Helper()
	place := t.TempDir()
	must.OK(t, os.CopyFS(place, os.DirFS("prometheus")))
	path := filepath.Join(place, "prometheus.yml")
	config := must.Read(t, path)
	config = bytes.ReplaceAll(config, []byte("127.0.0.1:9100"), []byte(target))
	config = bytes.ReplaceAll(config, []byte("scrape_interval: 15s"), []byte("scrape_interval: 1s"))
	must.OK(t, os.WriteFile(path, config, 0o600))
	address := "127.0.0.1:" + freePort(t)
	var log bytes.Buffer
	server := exec.Command("prometheus", "--config.file="+path, "--storage.tsdb.path="+filepath.Join(place, "data"),
		"--web.listen-address="+address)
	server.Stdout, server.Stderr = &log, &log
	must.OK(t, server.Start())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Wait() }()
	t.Cleanup(func() { _ = server.Process.Kill(); <-ended })
	base := "http://" + address
	for deadline := time.Now().Add(polltest.Deadline()); ; time.Sleep(50 * time.Millisecond) {
		answer, err := http.Get(base + "/-/ready")
		if err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return base
			}
		}
		select {
		case <-ended:
			t.Fatalf("Prometheus has ended:\n%s", log.String())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("Prometheus is not ready: %v", err)
		}
	}
}

// query returns what an expression finds.
func query(t *testing.T, base, expr string) []json.RawMessage {
	t.Helper()
	answer := must.Get(http.Get(base + "/api/v1/query?query=" + url.QueryEscape(expr)))(t)
	defer answer.Body.Close()
	var found struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	if err := json.NewDecoder(answer.Body).Decode(&found); err != nil || found.Status != "success" {
		t.Fatal(fmt.Errorf("%s: %s, %w", expr, found.Error, err))
	}
	return found.Data.Result
}
