package interfaces_test

import (
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/same"
)

// TestCores: a task's cores are among its devices, and are no device.
func TestCores(t *testing.T) {
	gpu := &api.AllocatedDeviceResource{Vendor: "nvidia", Type: "gpu", Name: "x", DeviceIDs: []string{"1"}}
	for want, cores := range map[string][]string{
		"": nil, "3": {"3"}, "0,5-7": {"7", "0", "6", "5"}, "0-1": {"0", "1"}, "65535": {"65535", "65536", "x", "-1"},
	} {
		devices := []*api.AllocatedDeviceResource{gpu, interfaces.CoresDevice(cores)}
		alloc := &api.Allocation{AllocatedResources: &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{
			"t": {Devices: devices}}}}
		same.As(t, want, interfaces.CPUs(alloc, "t"), cores)
		if got := interfaces.RealDevices(devices); len(got) != 1 || got[0] != gpu {
			t.Errorf("%v", got)
		}
	}
	if got := interfaces.CPUs(&api.Allocation{}, "t"); got != "" {
		t.Error(got)
	}
	if got := interfaces.Cores([]*api.AllocatedDeviceResource{interfaces.CoresDevice([]string{"9", "2"})}); !slices.Equal(
		got, []uint16{9, 2}) {
		t.Error(got)
	}
}
