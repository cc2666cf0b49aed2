package handlers_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/handlers/apierror"
	"taskapi/internal/must"
)

// stoppable returns an allocation whose index a stop raises to 35, and what each stop said of its shutdown_delay.
func stoppable(t *testing.T) (alloc *fakeAlloc, stops chan bool) {
	alloc, stops = newAlloc(t), make(chan bool, 1)
	first := alloc.snapshot()
	current := *first
	alloc.snapshot = func() *api.Allocation { return &current }
	alloc.stop = func(_ context.Context, noShutdownDelay bool) error {
		stopped := *first
		stopped.ModifyIndex, stopped.DesiredStatus = 35, "stop"
		current = stopped
		stops <- noShutdownDelay
		return nil
	}
	return alloc, stops
}

func TestSDKStop(t *testing.T) {
	alloc, stops := stoppable(t)
	client := newServer(t, alloc).sdk(t, goodToken)
	for range 2 { // the second one finds it stopped
		got, err := client.Allocations().Stop(&api.Allocation{ID: allocID}, nil)
		if err != nil || uuid.Validate(got.EvalID) != nil || got.LastIndex != 35 {
			t.Fatalf("stop = %+v, %v; want a UUID and index 35", got, err)
		}
		<-stops
		evaluation, _, err := client.Evaluations().Info(got.EvalID, nil)
		if err != nil || evaluation.Status != "complete" || evaluation.JobID != "demo" ||
			evaluation.TriggeredBy != "alloc-stop" {
			t.Errorf("its evaluation = %+v, %v; want one that is complete", evaluation, err)
		}
		allocs, _, err := client.Evaluations().Allocations(got.EvalID, nil)
		if err != nil || len(allocs) != 1 || allocs[0].ID != allocID {
			t.Errorf("the allocations of its evaluation = %+v, %v", allocs, err)
		}
	}
}

func TestEvaluations(t *testing.T) {
	alloc, stops := stoppable(t)
	s := newServer(t, alloc)
	client := s.sdk(t, goodToken)
	placed, _, err := client.Evaluations().Info(alloc.Snapshot().EvalID, nil)
	if err != nil || placed.TriggeredBy != "job-register" || placed.Status != "complete" {
		t.Errorf("the evaluation that placed the allocation = %+v, %v", placed, err)
	}
	first := ""
	for i := range 65 { // one more than are remembered
		got := must.Get(client.Allocations().Stop(&api.Allocation{ID: allocID}, nil))(t)
		if <-stops; i == 0 {
			first = got.EvalID
		}
	}
	for _, id := range []string{first, otherID} {
		if got := s.do(t, http.MethodGet, "/v1/evaluation/"+id, goodToken, ""); got.Status != 404 ||
			got.Body != "eval not found" {
			t.Errorf("evaluation %q = %d %q, want 404 eval not found", id, got.Status, got.Body)
		}
	}
}

func TestStop(t *testing.T) {
	alloc, stops := stoppable(t)
	s := newServer(t, alloc)
	for query, hurries := range map[string]bool{"": false, "?no_shutdown_delay=false": false, "?pretty": false,
		"?no_shutdown_delay=true": true} {
		got := s.do(t, http.MethodPost, stopPath+query, goodToken, "")
		var body map[string]any
		if err := json.Unmarshal([]byte(got.Body), &body); err != nil || got.Status != 200 || len(body) != 2 ||
			body["Index"] != 35.0 {
			t.Errorf("stop%s = %d %q, want EvalID and Index 35", query, got.Status, got.Body)
		}
		if got := got.Header.Get("X-Nomad-Index"); got != "35" {
			t.Errorf("stop%s: index %q, want 35", query, got)
		}
		if got := <-stops; got != hurries {
			t.Errorf("stop%s: no shutdown_delay is %v", query, got)
		}
	}
	for _, c := range []struct {
		method, target, token string
		status                int
		body                  string
	}{
		{"GET", stopPath, goodToken, 405, "Invalid method"},
		{"PUT", stopPath, poorToken, 403, "Permission denied"},
		{"PUT", "/v1/allocation/" + otherID + "/stop", goodToken, 404, "allocation not found"},
		{"PUT", "/v1/allocation/c0d1/stop", goodToken, 400, `allocation ID "c0d1" must be a UUID of 36 characters, not 4`},
		{"PUT", stopPath + "?now=perhaps", goodToken, 400, `now must be true or false, not "perhaps"`},
		{"PUT", stopPath + "?no_shutdown_delay=x", goodToken, 400, `no_shutdown_delay must be true or false, not "x"`},
	} {
		if got := s.do(t, c.method, c.target, c.token, ""); got.Status != c.status || got.Body != c.body {
			t.Errorf("%s %s = %d %q, want %d %q", c.method, c.target, got.Status, got.Body, c.status, c.body)
		}
	}
	kills := 0
	alloc.kill = func() {
		if kills++; len(stops) > 0 {
			t.Error("killed after the stop, which has sent the kill_signal")
		}
	}
	for query, want := range map[string]int{"?now=false": 0, "?now=true&no_shutdown_delay=true": 1, "?now": 1} {
		kills = 0
		got := s.do(t, http.MethodPut, stopPath+query, goodToken, "")
		if <-stops; got.Status != 200 || kills != want {
			t.Errorf("stop%s = %d, killed %d times, want %d", query, got.Status, kills, want)
		}
	}
	alloc.stop = func(context.Context, bool) error { return runnerError(apierror.Conflict, "left to another") }
	if got := s.do(t, http.MethodPut, stopPath, goodToken, ""); got.Status != 409 || got.Body != "left to another" {
		t.Errorf("a refused stop = %d %q, want the runner's words with 409", got.Status, got.Body)
	}
}
