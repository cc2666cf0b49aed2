package handlers_test

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
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
	const sum = `{"CpuStats":{"SystemMode":0,"UserMode":0,"TotalTicks":0,"ThrottledPeriods":0,"ThrottledTime":0,` +
		`"Percent":0,"Measured":null},"DeviceStats":[],"MemoryStats":{"RSS":0,"Cache":0,"Swap":0,"Usage":0,` +
		`"MaxUsage":0,"KernelUsage":0,"KernelMaxUsage":0,"Measured":null,"MappedFile":0}}`
	const want = `{"Timestamp":0,"ResourceUsage":` + sum + `,"Tasks":{}}`
	for _, query := range []string{"", "?task=server"} {
		if got := s.do(t, http.MethodGet, "/v1/client/allocation/"+allocID+"/stats"+query, goodToken,
			""); got.Status != 200 || got.Body != want {
			t.Errorf("%s: %d %s, want %s", query, got.Status, got.Body, want)
		}
	}
}
