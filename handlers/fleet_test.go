package handlers_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/fleet"
	"taskapi/allocrunner/cluster/memory"
	"taskapi/handlers"
	"taskapi/internal/must"
)

const (
	otherNode  = "22222222-2222-4222-8222-222222222222"
	otherAlloc = "33333333-3333-4333-8333-333333333333"
)

// published puts an allocation of another machine, and that machine, into a store.
func published(t *testing.T, store cluster.Store, status string) {
	t.Helper()
	var txn cluster.Txn
	for key, v := range map[string]any{
		"fleet/allocs/" + otherAlloc: &api.Allocation{ID: otherAlloc, Name: "job.group[1]", Namespace: "other", JobID: "job",
			NodeID: otherNode, NodeName: "over there", ClientStatus: status},
		"fleet/nodes/" + otherNode: &api.Node{ID: otherNode, Name: "over there", Status: "ready"},
	} {
		value := must.Get(json.Marshal(v))(t)
		txn.Then = append(txn.Then, cluster.Operation{Key: key, Value: value})
	}
	must.Get(store.Commit(t.Context(), txn))(t)
}

// fleetServer is a server whose operator sees the machines of a store.
func fleetServer(t *testing.T, store cluster.Store) *server {
	return newServer(t, newAlloc(t), everyRoute, func(c *handlers.Config) {
		c.Fleet = fleet.New(store)
		c.Elsewhere = func(_ context.Context, id string) string {
			if id == otherAlloc {
				return "it runs over there"
			}
			return ""
		}
	})
}

// TestFleet: the operator sees the allocations and machines of all, and a task its own alone.
func TestFleet(t *testing.T) {
	store := memory.New()
	published(t, store, "pending")
	s := fleetServer(t, store)
	client := s.sdk(t, operator)
	list, meta, err := client.Allocations().List(nil)
	if err != nil || len(list) != 2 || list[0].ID != otherAlloc || list[0].NodeName != "over there" ||
		list[1].ID != allocID {
		t.Fatalf("%+v, %v", list, err)
	}
	for query, want := range map[string]int{"?prefix=3333": 1, "?namespace=other": 1, "?per_page=1": 1,
		"?filter=" + `ClientStatus=="pending"`: 1, "?prefix=4": 0} {
		var found []*api.AllocationListStub
		reply := s.do(t, "GET", "/v1/allocations"+query, operator, "")
		if err := json.Unmarshal([]byte(reply.Body), &found); err != nil || len(found) != want {
			t.Errorf("%s: %d %s", query, reply.Status, reply.Body)
		}
	}
	woken := make(chan string, 1)
	go func() {
		list, _, err := client.Allocations().List(&api.QueryOptions{WaitIndex: meta.LastIndex, WaitTime: time.Minute})
		if err != nil || len(list) != 2 {
			woken <- err.Error()
			return
		}
		woken <- list[len(list)-1].ClientStatus + list[0].ClientStatus
	}()
	published(t, store, "failed")
	if got := <-woken; got != "failedrunning" && got != "runningfailed" {
		t.Error(got)
	}
	nodes, _, err := client.Nodes().List(nil)
	if err != nil || len(nodes) != 2 || nodes[0].ID != anyNode || nodes[1].Name != "over there" {
		t.Errorf("%+v, %v", nodes, err)
	}
	node, _, err := client.Nodes().Info(otherNode, nil)
	if err != nil || node.Name != "over there" {
		t.Errorf("%+v, %v", node, err)
	}
	allocs, _, err := client.Nodes().Allocations(otherNode, nil)
	if err != nil || len(allocs) != 1 || allocs[0].ID != otherAlloc {
		t.Errorf("%+v, %v", allocs, err)
	}
	_, _, err = client.Nodes().Info(allocID, nil)
	wantSDKError(t, err, 404, "node not found")
	_, _, err = client.Allocations().Info(otherAlloc, nil)
	wantSDKError(t, err, 404, "alloc not found: it runs over there")
	_, _, err = client.Allocations().Info(otherNode, nil)
	wantSDKError(t, err, 404, "alloc not found")

	task := s.sdk(t, goodToken)
	if list, _, err := task.Allocations().List(nil); err != nil || len(list) != 1 || list[0].ID != allocID {
		t.Errorf("a task lists %+v, %v", list, err)
	}
	_, _, err = task.Allocations().Info(otherAlloc, nil)
	wantSDKError(t, err, 404, "alloc not found")
}

// TestFleetAway: without the store, the operator reads that it is away, and no part of the list.
func TestFleetAway(t *testing.T) {
	store := memory.New()
	s := fleetServer(t, store)
	must.OK(t, store.Close())
	for _, path := range []string{"/v1/allocations", "/v1/nodes", "/v1/node/" + otherNode} {
		if reply := s.do(t, "GET", path, operator, ""); reply.Status != 503 {
			t.Errorf("%s: %d %s", path, reply.Status, reply.Body)
		}
	}
	if reply := s.do(t, "GET", "/v1/allocation/"+allocID, operator, ""); reply.Status != 200 {
		t.Errorf("the own allocation: %d %s", reply.Status, reply.Body)
	}
}
