package wire

import (
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/ptr"
	"taskapi/internal/slice"
)

// Network and Port leave out what is empty, and MBits, which Nomad doesn't have.
type Network struct {
	Mode          string         `json:",omitempty"`
	Device        string         `json:",omitempty"`
	CIDR          string         `json:",omitempty"`
	IP            string         `json:",omitempty"`
	Hostname      string         `json:",omitempty"`
	DNS           *api.DNSConfig `json:",omitempty"`
	ReservedPorts []Port         `json:",omitempty"`
	DynamicPorts  []Port         `json:",omitempty"`
	CNI           *api.CNIConfig `json:",omitempty"`
}

type Port struct {
	Label           string
	Value           int    `json:",omitempty"`
	To              int    `json:",omitempty"`
	HostNetwork     string `json:",omitempty"`
	IgnoreCollision bool   `json:",omitempty"`
}

func NetworksOf(networks []*api.NetworkResource) []*Network {
	return slice.Map(networks, func(n *api.NetworkResource) *Network {
		return &Network{
			Mode: n.Mode, Device: n.Device, CIDR: n.CIDR, IP: n.IP, Hostname: n.Hostname, DNS: n.DNS, CNI: n.CNI,
			ReservedPorts: PortsOf(n.ReservedPorts), DynamicPorts: PortsOf(n.DynamicPorts),
		}
	})
}

func PortsOf(ports []api.Port) []Port {
	return slice.Map(ports, func(p api.Port) Port { return Port(p) })
}

// Allocated is AllocatedResources, with the life cycles and cores that the SDK lacks.
type Allocated struct {
	Shared         Shared
	TaskLifecycles map[string]*api.TaskLifecycle
	Tasks          map[string]*AllocatedTask
}

type Shared struct {
	DiskMB   int64
	Networks []*Network
	Ports    []Mapping
}

type Mapping struct {
	Label  string
	Value  int
	To     int `json:",omitempty"`
	HostIP string
}

type AllocatedTask struct {
	Cpu      CPU
	Memory   api.AllocatedMemoryResources
	Networks []*Network
	Devices  []*api.AllocatedDeviceResource
}

type CPU struct {
	api.AllocatedCpuResources
	ReservedCores []uint16 // null for none
}

func AllocatedOf(a *api.Allocation) *Allocated {
	allocated := a.AllocatedResources
	if allocated == nil {
		return nil
	}
	w := &Allocated{
		Shared: Shared{
			DiskMB: allocated.Shared.DiskMB, Networks: NetworksOf(allocated.Shared.Networks),
			Ports: slice.Map(allocated.Shared.Ports, func(p api.PortMapping) Mapping { return Mapping(p) }),
		},
		TaskLifecycles: map[string]*api.TaskLifecycle{}, // null for a main task
		Tasks:          make(map[string]*AllocatedTask, len(allocated.Tasks)),
	}
	for _, task := range OwnGroup(a).Tasks {
		w.TaskLifecycles[task.Name] = task.Lifecycle
	}
	for name, task := range allocated.Tasks {
		w.Tasks[name] = &AllocatedTask{
			Cpu: CPU{task.Cpu, interfaces.Cores(task.Devices)}, Memory: task.Memory,
			Networks: NetworksOf(task.Networks), Devices: interfaces.RealDevices(task.Devices),
		}
	}
	return w
}

// OwnGroup returns the task group that the allocation runs, an empty one when the job lacks it.
func OwnGroup(a *api.Allocation) *api.TaskGroup {
	if a.Job != nil {
		for _, group := range a.Job.TaskGroups {
			if group.Name != nil && *group.Name == a.TaskGroup {
				return group
			}
		}
	}
	return new(api.TaskGroup)
}

// OwnTask returns the task of an allocation's group, nil when there is none of that name.
func OwnTask(alloc *api.Allocation, name string) *api.Task {
	for _, task := range OwnGroup(alloc).Tasks {
		if task.Name == name {
			return task
		}
	}
	return nil
}

// Resources is the older form of resources, with every number present.
type Resources struct {
	CPU         int
	Cores       int
	MemoryMB    int
	MemoryMaxMB int
	DiskMB      int
	IOPS        int
	SecretsMB   int
	Networks    []*Network
	Devices     []*api.RequestedDevice
	NUMA        *api.NUMAResource
}

func ResourcesOf(r *api.Resources) *Resources {
	if r == nil {
		return nil
	}
	return &Resources{
		CPU: ptr.Deref(r.CPU), Cores: ptr.Deref(r.Cores),
		MemoryMB: ptr.Deref(r.MemoryMB), MemoryMaxMB: ptr.Deref(r.MemoryMaxMB),
		DiskMB: ptr.Deref(r.DiskMB), IOPS: ptr.Deref(r.IOPS), SecretsMB: ptr.Deref(r.SecretsMB),
		Networks: NetworksOf(r.Networks), Devices: r.Devices, NUMA: r.NUMA,
	}
}

func taskResourcesOf(a *api.Allocation) map[string]*Resources {
	tasks := map[string]*Resources{}
	for name, r := range a.TaskResources {
		tasks[name] = ResourcesOf(r)
	}
	return tasks
}

// sharedResourcesOf returns what belongs to the allocation as a whole, in the older form.
func sharedResourcesOf(a *api.Allocation) *Resources {
	if a.AllocatedResources == nil {
		return nil
	}
	shared := a.AllocatedResources.Shared
	return &Resources{DiskMB: int(shared.DiskMB), Networks: NetworksOf(shared.Networks)}
}
