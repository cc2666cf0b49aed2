package handlers_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/handlers"
)

func TestSDKHostStats(t *testing.T) {
	want := &api.HostStats{
		Memory: &api.HostMemoryStats{Total: 1 << 34}, CPU: []*api.HostCPUStats{{CPU: "cpu0", Idle: 100},
			{CPU: "cpu1", Idle: 25}, {CPU: "cpu2", Idle: 75}},
		DiskStats: []*api.HostDiskStats{}, AllocDirStats: &api.HostDiskStats{Device: "/dev/x"}, Uptime: 7,
		CPUTicksConsumed: 2000,
	}
	s := newServer(t, newAlloc(t), func(c *handlers.Config) {
		c.Host = func(context.Context) (*api.HostStats, time.Time, error) { return want, time.Unix(8, 9), nil }
	})
	var more struct {
		Timestamp int64
		CPU       []struct{ TotalPercent, TotalTicks float64 }
	}
	if err := json.Unmarshal([]byte(s.do(t, "GET", "/v1/client/stats", operator, "").Body), &more); err != nil ||
		more.Timestamp != 8e9+9 {
		t.Errorf("%+v, %v, want the time of the sample", more, err)
	}
	for i, want := range []struct{ TotalPercent, TotalTicks float64 }{{0, 0}, {75, 1500}, {25, 500}} {
		if more.CPU[i] != want {
			t.Errorf("CPU %d = %+v, want %+v", i, more.CPU[i], want)
		}
	}
	for _, node := range []string{otherID, ""} { // otherID is this node's
		got, err := s.sdk(t, operator).Nodes().Stats(node, nil)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("node %q: %v\n%s", node, err, diff)
		}
	}
	_, err := s.sdk(t, operator).Nodes().Stats(allocID, nil)
	wantSDKError(t, err, http.StatusNotFound, "node not found")
	_, err = s.sdk(t, goodToken).Nodes().Stats("", nil)
	wantSDKError(t, err, http.StatusForbidden, "Permission denied")
}
