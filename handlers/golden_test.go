package handlers_test

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/handlers"
	"taskapi/internal/must"
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

// TestAnswersAsRecorded holds answers for the recorded allocation against those that a Nomad agent gave, value by
// value: the same fields, null where it has null, absent where it leaves out.
func TestAnswersAsRecorded(t *testing.T) {
	s := newServer(t, newAlloc(t), func(c *handlers.Config) { c.SigningKeyID = func() string { return signingKeyID } })
	for file, target := range map[string]string{
		"allocation.json":   "/v1/allocation/" + allocID,
		"allocations.json":  "/v1/allocations?resources=true",
		"checks.json":       "/v1/client/allocation/" + allocID + "/checks",
		"stats.json":        "/v1/client/allocation/" + allocID + "/stats",
		"agent-health.json": "/v1/agent/health",
	} {
		t.Run(file, func(t *testing.T) {
			want := must.Read(t, filepath.Join("testdata", file))
			got := s.do(t, http.MethodGet, target, operator, "") // who is shown all
			if diff := cmp.Diff(tree(t, string(want)), tree(t, got.Body)); diff != "" {
				t.Errorf("GET %s: -recorded +ours\n%s", target, diff)
			}
			if got, want := got.Header.Get("Content-Type"), "application/json"; got != want {
				t.Errorf("content type = %q, want %q", got, want)
			}
		})
	}
}

// TestVersions: where clients look for Nomad's version is that of the API which is spoken, and the program's is beside
// it.
func TestVersions(t *testing.T) {
	s := newServer(t, newAlloc(t), everyRoute)
	client := s.sdk(t, operator)
	self := must.Get(client.Agent().Self())(t)
	version := self.Config["Version"].(map[string]any)
	if self.Member.Tags["build"] != "2.0.6-dev" || version["Version"] != "2.0.6" || version["VersionPrerelease"] != "dev" {
		t.Errorf("the agent is %+v, %v, want Nomad 2.0.6-dev", self.Member, version)
	}
	if self.Member.Tags["taskapi"] != "1.2.3" || self.Stats["taskapi"]["version"] != "1.2.3" {
		t.Errorf("the program is %+v, %v, want 1.2.3", self.Member, self.Stats)
	}
	members, err := client.Agent().Members()
	if err != nil || len(members.Members) != 1 || members.Members[0].Tags["build"] != "2.0.6-dev" {
		t.Errorf("members = %+v, %v", members, err)
	}
	node, _, err := client.Nodes().Info(anyNode, nil)
	if err != nil || node.Attributes["nomad.version"] != "2.0.6-dev" || node.Attributes["taskapi.version"] != "1.2.3" {
		t.Errorf("node = %v, %v", node, err)
	}
	if list, _, err := client.Nodes().List(nil); err != nil || len(list) != 1 || list[0].Version != "2.0.6-dev" {
		t.Errorf("nodes = %v, %v", list, err)
	}
}

// TestBareAllocation: an allocation that has only just been made encodes, without the fields it lacks.
func TestBareAllocation(t *testing.T) {
	alloc := newAlloc(t)
	bare := &api.Allocation{ID: allocID, ModifyIndex: 1, Job: &api.Job{TaskGroups: []*api.TaskGroup{{}}},
		TaskStates: map[string]*api.TaskState{"a": {State: "pending",
			Events: []*api.TaskEvent{{Type: "Received"}}}, "b": nil}}
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
