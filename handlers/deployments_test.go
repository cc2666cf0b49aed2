package handlers_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"

	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/handlers/events"
	"taskapi/handlers/internal/route"
	"taskapi/internal/must"
)

// deployed is an allocation with deployments.
type deployed struct {
	*fakeAlloc
	list    []*api.Deployment
	failed  string
	healthy *bool
}

func (d *deployed) Deployments() []*api.Deployment { return d.list }
func (d *deployed) FailDeployment(id string)       { d.failed = id }
func (d *deployed) SetHealth(healthy bool)         { d.healthy = &healthy }

// deployedAllocs finds that one.
type deployedAllocs struct{ alloc *deployed }

func (d deployedAllocs) Get(id string) (route.Alloc, bool) { return d.alloc, id == allocID }

const (
	runningID = "aaaaaaaa-2222-4333-8444-555555555555"
	overID    = "bbbbbbbb-2222-4333-8444-555555555555"
)

// newDeployed returns an allocation with a deployment that runs, of which it is, and one that is over.
func newDeployed(t *testing.T) *deployed {
	t.Helper()
	alloc := newAlloc(t)
	current := *alloc.snapshot()
	current.DeploymentID = runningID
	alloc.snapshot = func() *api.Allocation { return &current }
	state := func(healthy int) map[string]*api.DeploymentState {
		return map[string]*api.DeploymentState{"web": {DesiredTotal: 1, PlacedAllocs: 1, HealthyAllocs: healthy}}
	}
	return &deployed{fakeAlloc: alloc, list: []*api.Deployment{
		{ID: runningID, Namespace: "default", JobID: "demo", JobVersion: 1, Status: "running", TaskGroups: state(0),
			CreateIndex: 30, ModifyIndex: 31},
		{ID: overID, Namespace: "default", JobID: "demo", Status: "successful", TaskGroups: state(1), CreateIndex: 10,
			ModifyIndex: 20},
	}}
}

func serveDeployed(t *testing.T, alloc *deployed) *server {
	t.Helper()
	return newServer(t, alloc.fakeAlloc, everyRoute, func(c *handlers.Config) { c.Allocs = deployedAllocs{alloc} })
}

func TestSDKDeployments(t *testing.T) {
	alloc := newDeployed(t)
	s := serveDeployed(t, alloc)
	client := s.sdk(t, goodToken)
	all, _, err := client.Deployments().List(nil)
	if diff := cmp.Diff(alloc.list, all); err != nil || diff != "" {
		t.Errorf("list: %v, -runner +SDK\n%s", err, diff)
	}
	if all, _, err := client.Deployments().PrefixList("bbbb"); err != nil || len(all) != 1 || all[0].ID != overID {
		t.Errorf("with a prefix %v, %v", all, err)
	}
	if all, _, err := client.Jobs().Deployments("demo", true, nil); err != nil || len(all) != 2 {
		t.Errorf("of the job %v, %v", all, err)
	}
	if all, _, err := client.Jobs().Deployments("other", true, nil); err != nil || len(all) != 0 {
		t.Errorf("of another job %v, %v", all, err)
	}
	latest, _, err := client.Jobs().LatestDeployment("demo", nil)
	if err != nil || latest.ID != runningID {
		t.Errorf("latest %+v, %v", latest, err)
	}
	one, meta, err := client.Deployments().Info(overID, nil)
	if diff := cmp.Diff(alloc.list[1], one); err != nil || diff != "" || meta.LastIndex != 20 {
		t.Errorf("info: %v, index %+v, -runner +SDK\n%s", err, meta, diff)
	}
	found, _, err := client.Search().PrefixSearch("bbbb", contexts.Deployments, nil)
	if err != nil || !slices.Equal(found.Matches[contexts.Deployments], []string{overID}) {
		t.Errorf("a search finds %+v, %v", found, err)
	}
	_, _, err = client.Deployments().Info(allocID, nil)
	wantSDKError(t, err, 404, "deployment not found")
	for id, want := range map[string]int{runningID: 1, overID: 0} {
		if allocs, _, err := client.Deployments().Allocations(id, nil); err != nil || len(allocs) != want {
			t.Errorf("allocations of %s: %v, %v", id, allocs, err)
		}
	}
}

// TestChangeDeployment: what an operator can do to a deployment that runs, and what nobody can.
func TestChangeDeployment(t *testing.T) {
	alloc := newDeployed(t)
	s := serveDeployed(t, alloc)
	client := s.sdk(t, operator).Deployments()
	update, _, err := client.Fail(runningID, nil)
	if err != nil || alloc.failed != runningID || update.EvalID == "" {
		t.Errorf("fail: %+v, %v; failed %q", update, err, alloc.failed)
	}
	if _, _, err := client.SetAllocHealth(runningID, []string{allocID}, nil, nil); err != nil || alloc.healthy == nil ||
		!*alloc.healthy {
		t.Errorf("healthy: %v, %v", alloc.healthy, err)
	}
	if _, _, err := client.SetAllocHealth(runningID, nil, []string{allocID}, nil); err != nil || *alloc.healthy {
		t.Errorf("unhealthy: %v, %v", *alloc.healthy, err)
	}
	_, _, err = client.SetAllocHealth(runningID, []string{otherID}, nil, nil)
	wantSDKError(t, err, 400, `allocation "`+otherID+`" is not in deployment `+runningID)
	_, _, err = client.SetAllocHealth(runningID, nil, nil, nil)
	wantSDKError(t, err, 400, "name the allocation in HealthyAllocationIDs or in UnhealthyAllocationIDs")
	_, _, err = client.PromoteAll(runningID, nil)
	wantSDKError(t, err, 400, "no canaries to promote")
	_, _, err = client.Fail(overID, nil)
	wantSDKError(t, err, 400, "deployment "+overID+" is successful: only one that runs can be changed")
	_, _, err = client.Pause(runningID, true, nil)
	wantSDKError(t, err, 501,
		"a deployment here has no steps to pause between, and waits for no other region")
	_, _, err = s.sdk(t, goodToken).Deployments().Fail(runningID, nil)
	wantSDKError(t, err, 403, "Permission denied")
	for body, want := range map[string]string{"{}": "DeploymentID must be specified",
		`{"DeploymentID":"` + overID + `"}`: "Deployment ID does not match"} {
		if got := s.do(t, "PUT", "/v1/deployment/fail/"+runningID, operator, body); got.Status != 400 || got.Body != want {
			t.Errorf("%s = %d %q, want %q", body, got.Status, got.Body, want)
		}
	}
}

// TestDeploymentEvents: an event for each change of a deployment, with the version of the allocation that has made it,
// and none of what was before this process.
func TestDeploymentEvents(t *testing.T) {
	log := events.New()
	list := []*api.Deployment{{ID: overID, JobID: "demo", Namespace: "default", Status: "successful", CreateIndex: 10,
		ModifyIndex: 20}}
	log.FollowDeployments(func() []*api.Deployment { return list })
	saved := *recordedAlloc()
	saved.ModifyIndex = 30
	log.Resume(&saved, &saved, false)
	alloc := touched(t, log, 30)
	client := newServerOf(t, auth.Owner{AllocationID: allocID, UID: peer.UID}, alloc, everyRoute,
		streaming(log)).sdk(t, operator)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream := must.Get(client.EventStream().Stream(ctx, map[api.Topic][]string{api.TopicDeployment: {"demo"}}, 0,
		&api.QueryOptions{}))(t)
	list = []*api.Deployment{{ID: runningID, JobID: "demo", Namespace: "default", Status: "running", CreateIndex: 31,
		ModifyIndex: 31}, list[0]}
	put(t, log, 31, nil)
	list = []*api.Deployment{{ID: runningID, JobID: "demo", Namespace: "default", Status: "successful", CreateIndex: 31,
		ModifyIndex: 33}, list[1]}
	put(t, log, 32, nil) // which is not the one that changes it
	put(t, log, 33, nil)
	var got []string
	for _, want := range []uint64{31, 33} {
		line := next(t, stream)
		for _, e := range line.Events {
			d, err := e.Deployment()
			if err != nil || line.Index != want || e.Key != runningID {
				t.Fatalf("index %d: %+v, %v", line.Index, d, err)
			}
			got = append(got, string(e.Topic)+" "+e.Type+" "+d.Status)
		}
	}
	if want := "Deployment PlanResult running, Deployment DeploymentStatusUpdate successful"; strings.Join(got,
		", ") != want {
		t.Errorf("events %q, want %s", got, want)
	}
}

// TestListsOfNothing: what does not exist is an empty list; clients read an error as a failure of theirs.
func TestListsOfNothing(t *testing.T) {
	s := newServer(t, newAlloc(t), everyRoute)
	for _, path := range []string{"/v1/volumes?type=csi", "/v1/volumes?type=host", "/v1/plugins", "/v1/scaling/policies",
		"/v1/acl/policies", "/v1/acl/auth-methods"} {
		if got := s.do(t, "GET", path, goodToken, ""); got.Status != 200 || got.Body != "[]" {
			t.Errorf("%s = %d %q, want []", path, got.Status, got.Body)
		}
	}
}

func TestJobStatuses(t *testing.T) {
	s := serveDeployed(t, newDeployed(t))
	type status struct {
		ID               string
		Allocs           []struct{ ID, ClientStatus string }
		LatestDeployment struct {
			ID       string
			IsActive bool
		}
	}
	for body, want := range map[string]int{"": 1, `{"Jobs":[{"ID":"demo","Namespace":"default"}]}`: 1,
		`{"Jobs":[{"ID":"other"}]}`: 0} {
		var got []status
		query := func() error {
			if body == "" {
				_, err := s.sdk(t, goodToken).Raw().Query("/v1/jobs/statuses", &got, nil)
				return err
			}
			return json.Unmarshal([]byte(s.do(t, "POST", "/v1/jobs/statuses", goodToken, body).Body), &got)
		}
		if err := query(); err != nil || len(got) != want {
			t.Errorf("%s: %+v, %v; want %d", body, got, err, want)
		}
		if want == 1 && (got[0].ID != "demo" || got[0].Allocs[0].ID != allocID || got[0].LatestDeployment.ID != runningID ||
			!got[0].LatestDeployment.IsActive) {
			t.Errorf("%s: %+v", body, got)
		}
	}
	if got := s.do(t, "POST", "/v1/jobs/statuses", goodToken, "{}"); got.Status != 400 ||
		got.Body != "no jobs in request" {
		t.Errorf("no jobs = %d %q", got.Status, got.Body)
	}
}
