// Package fingerprint describes this machine as Nomad's API describes a node: its measured resources, and the metadata
// that operators set. Every figure is read from the kernel when it is needed, and a figure that can't be read is left
// out. Metadata is bounded, and is written whole or not at all. The package starts no process.
package fingerprint

import (
	"cmp"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/hoststats"
	"taskapi/allocrunner/internal/ports"
	"taskapi/allocrunner/taskenv"
	"taskapi/internal/proc"
)

// Node returns this machine, with its task drivers, as a node that is ready. The node's disk is the free space on the
// file system of dir, as in Nomad. The caller adds the ID, the datacenter, the pool and the metadata.
func Node(dir string, known *drivers.Registry) *api.Node {
	n := taskenv.DetectNode(known.Attributes())
	n.Status, n.SchedulingEligibility = api.NodeStatusReady, api.NodeSchedulingEligible
	n.Drivers, n.ReservedResources = map[string]*api.DriverInfo{}, &api.NodeReservedResources{}
	cores, mhz := runtime.NumCPU(), int(proc.Megahertz())
	if model := proc.Value("/proc/cpuinfo", "model name"); model != "" {
		n.Attributes["cpu.modelname"] = model
	}
	if mhz != 0 {
		n.Attributes["cpu.frequency"] = strconv.Itoa(mhz)
		n.Attributes["cpu.totalcompute"] = strconv.Itoa(cores * mhz)
		n.Attributes["cpu.usablecompute"] = n.Attributes["cpu.totalcompute"]
	}
	memory, disk := &api.HostMemoryStats{}, &api.HostDiskStats{}
	if measured, err := hoststats.Memory(); err == nil {
		memory = measured
	}
	if measured, err := hoststats.Disk(dir); err == nil {
		disk = measured
		n.Attributes["unique.storage.volume"] = cmp.Or(disk.Device, dir) // as in GET /v1/client/stats
		n.Attributes["unique.storage.bytestotal"] = strconv.FormatUint(disk.Size, 10)
		n.Attributes["unique.storage.bytesfree"] = strconv.FormatUint(disk.Available, 10)
	}
	n.NodeResources = &api.NodeResources{
		Cpu:    api.NodeCpuResources{CpuShares: int64(cores * mhz), TotalCpuCores: uint16(cores)},
		Memory: api.NodeMemoryResources{MemoryMB: int64(memory.Total >> 20)},
		Disk:   api.NodeDiskResources{DiskMB: int64(disk.Available >> 20)},
	}
	n.NodeResources.MinDynamicPort, n.NodeResources.MaxDynamicPort = ports.DefaultFirst, ports.DefaultLast
	for _, id := range proc.CPUs() {
		n.NodeResources.Cpu.ReservableCpuCores = append(n.NodeResources.Cpu.ReservableCpuCores, uint16(id))
	}
	n.Attributes["cpu.reservablecores"] = strconv.Itoa(len(n.NodeResources.Cpu.ReservableCpuCores))
	n.NodeResources.Networks = networks(n.Attributes["unique.network.ip-address"])
	now := time.Now()
	for name, found := range known.Fingerprints() {
		attributes := map[string]string{"driver." + name: "true"}
		maps.Copy(attributes, found.Attributes)
		n.Drivers[name] = &api.DriverInfo{
			Attributes: attributes, Detected: true, Healthy: found.Problem == "",
			HealthDescription: cmp.Or(found.Problem, "Healthy"), UpdateTime: now,
		}
	}
	return &n
}

// networks returns every address of the interface that has the address ip.
func networks(ip string) (found []*api.NetworkResource) {
	all, _ := net.Interfaces() // without interfaces there are no addresses
	for _, i := range all {
		addresses, _ := i.Addrs()
		var own []*api.NetworkResource
		has := false
		speed := 1000 // megabits a second, which Nomad also assumes if the system does not say
		if n, err := proc.Number(filepath.Join("/sys/class/net", i.Name, "speed")); err == nil && n > 0 {
			speed = int(n)
		}
		for _, a := range addresses {
			prefix, err := netip.ParsePrefix(a.String())
			if err != nil || prefix.Addr().IsLinkLocalUnicast() {
				continue
			}
			address := prefix.Addr()
			has = has || address.String() == ip
			own = append(own, &api.NetworkResource{
				Mode: "host", Device: i.Name, MBits: new(speed),
				IP: address.String(), CIDR: netip.PrefixFrom(address, address.BitLen()).String(),
			})
		}
		if has {
			found = append(found, own...)
		}
	}
	return found
}
