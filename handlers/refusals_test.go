package handlers_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/internal/must"
)

// TestRefusals: the operator reads which capabilities a task lacked, wherever the lack was found: by the route, by the
// path of a variable, or by the query. Other callers don't.
func TestRefusals(t *testing.T) {
	const path = "/v1/client/allocation/" + allocID + "/refusals"
	refusals := new(auth.Refusals)
	shared := func(c *handlers.Config) { c.Refusals, c.Variables = refusals, newFakeVariables() }
	task := newServer(t, newAlloc(t), everyRoute, shared)
	ofOperator := newServerOf(t, auth.Owner{AllocationID: allocID, UID: peer.UID}, newAlloc(t), shared)
	for _, request := range [][2]string{
		{http.MethodPut, "/v1/var/nomad/jobs/a%1b%5b31m?lock-acquire"}, {http.MethodPut, "/v1/var/nomad/jobs/b?lock-acquire"},
		{http.MethodGet, "/v1/var/secret"}, {http.MethodGet, "/v1/event/stream?topic=Node"}, {http.MethodGet, path},
	} {
		if got := task.do(t, request[0], request[1], goodToken, "{}"); got.Status != 403 || got.Body != "Permission denied" {
			t.Errorf("%s = %d %q", request, got.Status, got.Body)
		}
	}
	ofOperator.do(t, http.MethodGet, "/v1/allocations", poorToken, "")
	got := ofOperator.do(t, http.MethodGet, path, operator, "")
	var all map[string][]auth.Refusal
	must.OK(t, json.Unmarshal([]byte(got.Body), &all))
	missing := auth.MissingCapability.String()
	want := map[string][]auth.Refusal{"server": {
		{Count: 2, Reason: missing, Method: "PUT", Path: "/v1/var/nomad/jobs/b", Capability: "variables-write"},
		{Count: 1, Reason: missing, Method: "GET", Path: "/v1/var/secret", Capability: "variables-read"},
		{Count: 1, Reason: missing, Method: "GET", Path: "/v1/event/stream", Capability: "node:read"},
		{Count: 1, Reason: missing, Method: "GET", Path: path, Capability: "operator-only"},
	}}
	if diff := cmp.Diff(want, all, cmpopts.IgnoreUnexported(auth.Refusal{}),
		cmpopts.IgnoreFields(auth.Refusal{}, "Time")); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestDenialNamesTheCapability: a process of the operator's that has a task's token reads which capability the task
// lacks. The task reads what Nomad says.
func TestDenialNamesTheCapability(t *testing.T) {
	other, anybody := taskSocket, taskSocket
	other.UID, anybody.UID, anybody.AnyUser = 4711, 4711, true
	for name, test := range map[string]struct {
		owner auth.Owner
		want  string
	}{
		"the task":        {taskSocket, "Permission denied"},
		"the operator":    {other, "Permission denied: needs variables-write"},
		"an unknown user": {anybody, "Permission denied"},
	} {
		s := newServerOf(t, test.owner, newAlloc(t), withVariables(newFakeVariables("x")))
		for _, path := range []string{"/v1/var/x", "/v1/var/none"} {
			if got := s.do(t, http.MethodPut, path, goodToken, "{}"); got.Status != 403 || got.Body != test.want {
				t.Errorf("%s: %s = %d %q, want %q", name, path, got.Status, got.Body, test.want)
			}
		}
	}
}
