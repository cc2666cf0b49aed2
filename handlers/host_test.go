package handlers_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/handlers"
)

func TestSDKHostStats(t *testing.T) {
	want := &api.HostStats{
		Memory: &api.HostMemoryStats{Total: 1 << 34}, CPU: []*api.HostCPUStats{{CPU: "cpu0", Idle: 100}},
		DiskStats: []*api.HostDiskStats{}, AllocDirStats: &api.HostDiskStats{Device: "/dev/x"}, DeviceStats: []*api.DeviceGroupStats{}, Uptime: 7,
	}
	s := newServer(t, newAlloc(t), func(c *handlers.Config) {
		c.Host = func(context.Context) (*api.HostStats, error) { return want, nil }
	})
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
