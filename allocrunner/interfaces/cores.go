package interfaces

import (
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// coresType and coresName are those of CoresDevice. A device has a vendor, too.
const (
	coresType = "cpu"
	coresName = "cores"
)

// CoresDevice returns a task's reserved cores, by their numbers, in the form of a device: the SDK's
// AllocatedTaskResources have no other place for cores. The API shows them where Nomad has them.
func CoresDevice(cores []string) *api.AllocatedDeviceResource {
	return &api.AllocatedDeviceResource{Type: coresType, Name: coresName, DeviceIDs: cores}
}

// IsCores reports whether a device is a CoresDevice.
func IsCores(d *api.AllocatedDeviceResource) bool {
	return d.Vendor == "" && d.Type == coresType && d.Name == coresName
}

// RealDevices returns a task's devices without its cores; nil for none.
func RealDevices(devices []*api.AllocatedDeviceResource) (others []*api.AllocatedDeviceResource) {
	for _, d := range devices {
		if !IsCores(d) {
			others = append(others, d)
		}
	}
	return others
}

// Cores returns the reserved cores among a task's devices, in their order; nil for none.
func Cores(devices []*api.AllocatedDeviceResource) (cores []uint16) {
	for _, d := range devices {
		if !IsCores(d) {
			continue
		}
		for _, id := range d.DeviceIDs {
			if core, err := strconv.ParseUint(id, 10, 16); err == nil {
				cores = append(cores, uint16(core))
			}
		}
	}
	return cores
}

// CPUs returns the numbers of a task's reserved cores as cpuset(7) lists them, such as 0,5-7; empty for none.
func CPUs(alloc *api.Allocation, task string) string {
	if alloc.AllocatedResources == nil || alloc.AllocatedResources.Tasks[task] == nil {
		return ""
	}
	cores := Cores(alloc.AllocatedResources.Tasks[task].Devices)
	slices.Sort(cores)
	var list strings.Builder
	for i := 0; i < len(cores); i++ {
		first := cores[i]
		for i+1 < len(cores) && cores[i+1] == cores[i]+1 {
			i++
		}
		if list.Len() > 0 {
			list.WriteByte(',')
		}
		list.WriteString(strconv.Itoa(int(first)))
		if cores[i] > first {
			list.WriteString("-" + strconv.Itoa(int(cores[i])))
		}
	}
	return list.String()
}
