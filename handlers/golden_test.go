package handlers_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/handlers"
)

const signingKeyID = "4d7eac81-d042-85fd-9e74-75e26760781d" // as in testdata/allocation.json

// tree is JSON as a tree whose numbers keep every digit.
func tree(tb testing.TB, text string) any {
	tb.Helper()
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		tb.Fatalf("%v in %q", err, text)
	}
	return value
}

// TestAnswersAsRecorded holds answers for the recorded allocation against those that a Nomad agent gave, value by value: the
// same fields, null where it has null, absent where it leaves out.
func TestAnswersAsRecorded(t *testing.T) {
	s := newServer(t, newAlloc(t), func(c *handlers.Config) { c.SigningKeyID = func() string { return signingKeyID } })
	for file, target := range map[string]string{
		"allocation.json":   "/v1/allocation/" + allocID,
		"allocations.json":  "/v1/allocations?resources=true",
		"checks.json":       "/v1/client/allocation/" + allocID + "/checks",
		"agent-health.json": "/v1/agent/health",
	} {
		t.Run(file, func(t *testing.T) {
			want, err := os.ReadFile(filepath.Join("testdata", file))
			if err != nil {
				t.Fatal(err)
			}
			got := s.do(t, http.MethodGet, target, goodToken, "")
			if diff := cmp.Diff(tree(t, string(want)), tree(t, got.Body)); diff != "" {
				t.Errorf("GET %s: -recorded +ours\n%s", target, diff)
			}
			if got, want := got.Header.Get("Content-Type"), "application/json"; got != want {
				t.Errorf("content type = %q, want %q", got, want)
			}
		})
	}
}

// shape returns the set of paths in a JSON tree, each with its type.
func shape(at string, value any, into map[string]string) map[string]string {
	switch v := value.(type) {
	case map[string]any:
		into[at] = "object"
		for key, member := range v {
			shape(at+"."+key, member, into)
		}
	case []any:
		into[at] = "array"
		for _, element := range v {
			shape(at+"[]", element, into)
		}
	default:
		into[at] = fmt.Sprintf("%T", value)
	}
	return into
}

// TestAgentSelfAsRecorded compares names and types: the values are those of another machine.
func TestAgentSelfAsRecorded(t *testing.T) {
	s := newServer(t, newAlloc(t))
	got := s.do(t, http.MethodGet, "/v1/agent/self", goodToken, "")
	want := recorded[json.RawMessage](t, "agent-self.json")
	if diff := cmp.Diff(shape("", tree(t, string(want)), map[string]string{}), shape("", tree(t, got.Body), map[string]string{})); diff != "" {
		t.Errorf("-recorded +ours\n%s", diff)
	}
}

// TestResourcesDerived: what a runner leaves to the wire follows from AllocatedResources, as Nomad would have it.
func TestResourcesDerived(t *testing.T) {
	alloc := newAlloc(t)
	bare := *alloc.snapshot()
	bare.Resources, bare.TaskResources = nil, nil
	alloc.snapshot = func() *api.Allocation { return &bare }
	got := tree(t, newServer(t, alloc).do(t, http.MethodGet, "/v1/allocation/"+allocID, goodToken, "").Body).(map[string]any)
	want := recorded[json.RawMessage](t, "allocation.json")
	whole := tree(t, string(want)).(map[string]any)
	for _, field := range []string{"Resources", "SharedResources", "TaskResources"} {
		if diff := cmp.Diff(whole[field], got[field]); diff != "" {
			t.Errorf("%s: -recorded +derived\n%s", field, diff)
		}
	}
}

// TestBareAllocation: an allocation that has only just been made encodes, without the fields it lacks.
func TestBareAllocation(t *testing.T) {
	alloc := newAlloc(t)
	bare := &api.Allocation{ID: allocID, ModifyIndex: 1, Job: &api.Job{TaskGroups: []*api.TaskGroup{{}}},
		TaskStates: map[string]*api.TaskState{"a": {State: "pending", Events: []*api.TaskEvent{{Type: "Received"}}}, "b": nil}}
	alloc.snapshot = func() *api.Allocation { return bare }
	alloc.checks = func() (api.AllocCheckStatuses, uint64) { return nil, 2 }
	s := newServer(t, alloc)

	got := tree(t, s.do(t, http.MethodGet, "/v1/allocation/"+allocID, goodToken, "").Body).(map[string]any)
	for _, field := range []string{"Resources", "ClientStatus", "DesiredTransition", "SigningKeyID"} {
		if _, ok := got[field]; ok {
			t.Errorf("%s is there, want it left out", field)
		}
	}
	state := got["TaskStates"].(map[string]any)["a"].(map[string]any)
	for _, field := range []string{"StartedAt", "FinishedAt", "LastRestart"} {
		if value, ok := state[field]; !ok || value != nil {
			t.Errorf("%s = %v (there: %v), want null", field, value, ok)
		}
	}
	if got := s.do(t, http.MethodGet, "/v1/client/allocation/"+allocID+"/checks", goodToken, "").Body; got != "null" {
		t.Errorf("no checks = %q, want null", got)
	}
	if got := s.do(t, http.MethodGet, "/v1/allocations", goodToken, ""); got.Status != http.StatusOK {
		t.Errorf("list = %d %q", got.Status, got.Body)
	}
}
