package handlers

import "github.com/hashicorp/nomad/api"

// wireNetwork and wirePort leave out whatever is empty, and what Nomad doesn't know: MBits.
type wireNetwork struct {
	Mode          string         `json:",omitempty"`
	Device        string         `json:",omitempty"`
	CIDR          string         `json:",omitempty"`
	IP            string         `json:",omitempty"`
	Hostname      string         `json:",omitempty"`
	DNS           *api.DNSConfig `json:",omitempty"`
	ReservedPorts []wirePort     `json:",omitempty"`
	DynamicPorts  []wirePort     `json:",omitempty"`
	CNI           *api.CNIConfig `json:",omitempty"`
}

type wirePort struct {
	Label           string
	Value           int    `json:",omitempty"`
	To              int    `json:",omitempty"`
	HostNetwork     string `json:",omitempty"`
	IgnoreCollision bool   `json:",omitempty"`
}

func wireNetworksOf(networks []*api.NetworkResource) []*wireNetwork {
	var wired []*wireNetwork
	for _, n := range networks {
		wired = append(wired, &wireNetwork{
			Mode: n.Mode, Device: n.Device, CIDR: n.CIDR, IP: n.IP, Hostname: n.Hostname, DNS: n.DNS, CNI: n.CNI,
			ReservedPorts: wirePortsOf(n.ReservedPorts), DynamicPorts: wirePortsOf(n.DynamicPorts),
		})
	}
	return wired
}

func wirePortsOf(ports []api.Port) []wirePort {
	var wired []wirePort
	for _, p := range ports {
		wired = append(wired, wirePort(p))
	}
	return wired
}

// wireAllocated is AllocatedResources, with the life cycles and cores that the SDK lacks.
type wireAllocated struct {
	Shared         wireShared
	TaskLifecycles map[string]*api.TaskLifecycle
	Tasks          map[string]*wireAllocatedTask
}

type wireShared struct {
	DiskMB   int64
	Networks []*wireNetwork
	Ports    []wireMapping
}

type wireMapping struct {
	Label  string
	Value  int
	To     int `json:",omitempty"`
	HostIP string
}

type wireAllocatedTask struct {
	Cpu      wireCPU
	Memory   api.AllocatedMemoryResources
	Networks []*wireNetwork
	Devices  []*api.AllocatedDeviceResource
}

type wireCPU struct {
	api.AllocatedCpuResources
	ReservedCores []uint16 // null: no cores are reserved here
}

func wireAllocatedOf(a *api.Allocation) *wireAllocated {
	allocated := a.AllocatedResources
	if allocated == nil {
		return nil
	}
	w := &wireAllocated{
		Shared:         wireShared{DiskMB: allocated.Shared.DiskMB, Networks: wireNetworksOf(allocated.Shared.Networks)},
		TaskLifecycles: lifecyclesOf(a),
		Tasks:          make(map[string]*wireAllocatedTask, len(allocated.Tasks)),
	}
	for _, port := range allocated.Shared.Ports {
		w.Shared.Ports = append(w.Shared.Ports, wireMapping(port))
	}
	for name, task := range allocated.Tasks {
		w.Tasks[name] = &wireAllocatedTask{
			Cpu: wireCPU{AllocatedCpuResources: task.Cpu}, Memory: task.Memory,
			Networks: wireNetworksOf(task.Networks), Devices: task.Devices,
		}
	}
	return w
}

// lifecyclesOf returns each task's life cycle, null for a main task.
func lifecyclesOf(a *api.Allocation) map[string]*api.TaskLifecycle {
	lifecycles := map[string]*api.TaskLifecycle{}
	for _, task := range groupOf(a).Tasks {
		lifecycles[task.Name] = task.Lifecycle
	}
	return lifecycles
}

// groupOf returns the task group that the allocation runs, an empty one when the job lacks it.
func groupOf(a *api.Allocation) *api.TaskGroup {
	if a.Job != nil {
		for _, group := range a.Job.TaskGroups {
			if group.Name != nil && *group.Name == a.TaskGroup {
				return group
			}
		}
	}
	return new(api.TaskGroup)
}

// wireResources is the older form of resources, with wire networks and every number present.
type wireResources struct {
	CPU         int
	Cores       int
	MemoryMB    int
	MemoryMaxMB int
	DiskMB      int
	IOPS        int
	SecretsMB   int
	Networks    []*wireNetwork
	Devices     []*api.RequestedDevice
	NUMA        *api.NUMAResource
}

func wireResourcesOf(r *api.Resources) *wireResources {
	if r == nil {
		return nil
	}
	number := func(p *int) int {
		if p == nil {
			return 0
		}
		return *p
	}
	return &wireResources{
		CPU: number(r.CPU), Cores: number(r.Cores), MemoryMB: number(r.MemoryMB), MemoryMaxMB: number(r.MemoryMaxMB),
		DiskMB: number(r.DiskMB), IOPS: number(r.IOPS), SecretsMB: number(r.SecretsMB),
		Networks: wireNetworksOf(r.Networks), Devices: r.Devices, NUMA: r.NUMA,
	}
}

// resourcesOf returns the older form of the allocation's resources, in sum and by task: what the allocation says, or what follows
// from AllocatedResources. As Nomad counts, a task without a memory maximum adds its memory to the sum of maxima.
func resourcesOf(a *api.Allocation) (total *wireResources, perTask map[string]*wireResources) {
	total = wireResourcesOf(a.Resources)
	if a.TaskResources != nil {
		perTask = make(map[string]*wireResources, len(a.TaskResources))
		for name, r := range a.TaskResources {
			perTask[name] = wireResourcesOf(r)
		}
	}
	if a.AllocatedResources == nil || (total != nil && perTask != nil) {
		return total, perTask
	}
	sum, tasks := sharedResourcesOf(a), map[string]*wireResources{}
	for name, task := range a.AllocatedResources.Tasks {
		one := &wireResources{
			CPU: int(task.Cpu.CpuShares), MemoryMB: int(task.Memory.MemoryMB), MemoryMaxMB: int(task.Memory.MemoryMaxMB),
			Networks: wireNetworksOf(task.Networks),
		}
		tasks[name] = one
		sum.CPU += one.CPU
		sum.MemoryMB += one.MemoryMB
		sum.MemoryMaxMB += max(one.MemoryMB, one.MemoryMaxMB)
	}
	if total == nil {
		total = sum
	}
	if perTask == nil {
		perTask = tasks
	}
	return total, perTask
}

// sharedResourcesOf returns what belongs to the allocation as a whole, in the older form.
func sharedResourcesOf(a *api.Allocation) *wireResources {
	if a.AllocatedResources == nil {
		return nil
	}
	shared := a.AllocatedResources.Shared
	return &wireResources{DiskMB: int(shared.DiskMB), Networks: wireNetworksOf(shared.Networks)}
}
