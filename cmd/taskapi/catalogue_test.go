package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"taskapi/internal/must"
)

// TestBadTokensOverHTTP sends a token of every kind that a header can carry to the socket of a task that runs. Each is
// answered with the status that the catalogue names, and counted under its reason alone.
func TestBadTokensOverHTTP(t *testing.T) {
	t.Parallel()
	r := startRun(t, shortDir(t), testJob, "-o", "telemetry.listen=127.0.0.1:0", "-o", "limits.off=true")
	r.operator()
	base, socket := servedAt.FindStringSubmatch(r.stdout.String())[1], r.allocDir("server", "secrets", "api.sock")
	taskapi(t, "keyring", "rotate", "--data-dir", string(r.layout)) // so that there is another key
	sent, foreign := 0, 0
	before := refusals(scrape(t, base)["taskapi_door_refused_total"])
	if _, ok := before["signature"]; !ok {
		t.Fatalf("no counters of refusals: %v", before)
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
		if err != nil {
			t.Errorf("%s: %v", kind.Name, err)
			continue
		}
		after := refusals(scrape(t, base)["taskapi_door_refused_total"])
		for reason, n := range after {
			want := before[reason]
			if reason == kind.Reason {
				want++
			}
			if n != want || status != kind.Status {
				t.Errorf("%s: %d, and %g refused for %s; want %d %s", kind.Name, status, n-before[reason], reason, kind.Status,
					kind.Reason)
			}
		}
		before = after
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
