package handlers_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/internal/must"
)

func TestSDKStats(t *testing.T) {
	alloc := newAlloc(t)
	client := newServer(t, alloc).sdk(t, goodToken)
	want := recorded[*api.AllocResourceUsage](t, "stats.json")

	got, err := client.Allocations().Stats(alloc.snapshot(), nil)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("stats: %v\n%s", err, diff)
	}
	one, err := client.Allocations().Stats(alloc.snapshot(),
		&api.QueryOptions{Params: map[string]string{"task": "server"}})
	if err != nil || len(one.Tasks) != 1 || one.Timestamp != want.Timestamp ||
		one.ResourceUsage.MemoryStats.RSS != 22859776 {
		t.Errorf("stats of server = %+v, %v", one, err)
	}
	ended, err := client.Allocations().Stats(alloc.snapshot(),
		&api.QueryOptions{Params: map[string]string{"task": "init"}})
	if err != nil || len(ended.Tasks) != 1 || ended.Timestamp != 0 || ended.ResourceUsage.DeviceStats == nil {
		t.Errorf("stats of init = %+v, %v; want no sum of what does not run", ended, err)
	}
	_, err = client.Allocations().Stats(alloc.snapshot(), &api.QueryOptions{Params: map[string]string{"task": "nope"}})
	wantSDKError(t, err, http.StatusNotFound, "Task not found")
}

// TestStatsAsRecorded holds the answer against a Nomad agent's, less the one field that the SDK's type does not have.
func TestStatsAsRecorded(t *testing.T) {
	got := newServer(t, newAlloc(t)).do(t, http.MethodGet, "/v1/client/allocation/"+allocID+"/stats", goodToken, "")
	want, _ := json.Marshal(recorded[any](t, "stats.json"))
	bare := strings.ReplaceAll(string(want), `"MappedFile":0,`, "")
	if diff := cmp.Diff(tree(t, bare), tree(t, got.Body)); diff != "" {
		t.Errorf("-recorded +ours\n%s", diff)
	}
}

// TestStatsOfNothing: a task that has never run is not in the answer, whose maps and lists are there all the same.
func TestStatsOfNothing(t *testing.T) {
	alloc := newAlloc(t)
	nothing := &api.AllocResourceUsage{
		ResourceUsage: &api.ResourceUsage{MemoryStats: &api.MemoryStats{}, CpuStats: &api.CpuStats{},
			DeviceStats: []*api.DeviceGroupStats{}},
		Tasks: map[string]*api.TaskResourceUsage{},
	}
	alloc.stats = sending(nothing)
	s := newServer(t, alloc)
	want := must.Get(json.Marshal(nothing))(t)
	for _, query := range []string{"", "?task=server"} {
		if got := s.do(t, http.MethodGet, "/v1/client/allocation/"+allocID+"/stats"+query, goodToken,
			""); got.Status != 200 || got.Body != string(want) {
			t.Errorf("%s: %d %s, want %s", query, got.Status, got.Body, want)
		}
	}
}
