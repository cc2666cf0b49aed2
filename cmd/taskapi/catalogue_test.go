package main

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"taskapi/internal/must"
)

// TestBadTokensOverHTTP sends a token of every kind that a header can carry to the socket of a task that runs. Each is
// answered with the status that the catalogue names, and counted under its reason.
func TestBadTokensOverHTTP(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), testJob, "-o", "telemetry.listen=127.0.0.1:0", "-o", "limits.off=true")
	r.operator()
	base, socket := servedAt.FindStringSubmatch(r.stdout.String())[1], r.allocDir("server", "secrets", "api.sock")
	taskapi(t, "keyring", "rotate", "--data-dir", string(r.layout)) // so that there is another key
	sent, foreign := 0, 0
	want := refusals(scrape(t, base)["taskapi_door_refused_total"])
	if _, ok := want["signature"]; !ok {
		t.Fatalf("no counters of refusals: %v", want)
	}
	for line := range strings.Lines(taskapi(t, "token", "mint", "--all", "--task", "server", "--data-dir",
		string(r.layout))) {
		var kind struct {
			Name, Reason string
			Status       int
			InHeader     *bool
			Foreign      bool
			Token        *string
			TokenBytes   []byte
		}
		must.OK(t, json.Unmarshal([]byte(line), &kind))
		token := string(kind.TokenBytes)
		if kind.Token != nil {
			token = *kind.Token
		}
		switch {
		case kind.InHeader == nil: // no token of this kind can be made here
			if !kind.Foreign {
				t.Errorf("%s: there is no token", kind.Name)
			}
			continue
		case kind.Foreign: // bad under another issuer's key alone
			foreign++
			continue
		case !*kind.InHeader:
			continue
		}
		sent++
		status, err := statusOf(t.Context(), socket, token, http.MethodGet, "/v1/agent/health")
		if err != nil || status != kind.Status {
			t.Errorf("%s: %d, %v; want %d", kind.Name, status, err, kind.Status)
		}
		want[kind.Reason]++
	}
	if got := refusals(scrape(t, base)["taskapi_door_refused_total"]); !maps.Equal(got, want) {
		t.Errorf("the counters of refusals are %v, want %v", got, want)
	}
	if sent < 250 {
		t.Errorf("%d kinds were sent, and %d left out as foreign", sent, foreign)
	}
}

// refusals returns how many requests were refused for each reason.
func refusals(family *dto.MetricFamily) map[string]float64 {
	counts := map[string]float64{}
	for _, m := range family.GetMetric() {
		for _, l := range m.Label {
			if l.GetName() == "reason" {
				counts[l.GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	return counts
}
