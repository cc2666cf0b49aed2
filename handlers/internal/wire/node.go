package wire

import (
	"fmt"
	"hash/fnv"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"taskapi/internal/ptr"

	"github.com/hashicorp/nomad/api"
)

// Node lacks the older form of the resources and the secret, and adds what the SDK lacks.
type Node struct {
	*api.Node
	Resources                absent `json:",omitempty"`
	Reserved                 absent `json:",omitempty"`
	NodeResources            *NodeResources
	ReservedResources        *Reserved
	ComputedClass            string
	SecretID                 string
	IdentitySigningKeyID     string
	LastAllocUpdateIndex     uint64
	LastMissedHeartbeatIndex uint64
}

func NodeOf(n *api.Node, updated uint64, keyID string) *Node {
	return &Node{
		Node: n, NodeResources: nodeResourcesOf(n),
		ReservedResources: &Reserved{NodeReservedResources: n.ReservedResources},
		ComputedClass:     computedClass(n), IdentitySigningKeyID: keyID, LastAllocUpdateIndex: updated,
	}
}

// computedClass returns a text that is equal for machines that can run the same jobs.
func computedClass(n *api.Node) string {
	class := fnv.New64a()
	for _, name := range slices.Sorted(maps.Keys(n.Attributes)) {
		if !strings.HasPrefix(name, "unique.") {
			fmt.Fprintf(class, "%q=%q ", name, n.Attributes[name])
		}
	}
	fmt.Fprint(class, n.Datacenter, n.NodePool, n.NodeClass, n.Meta) // fmt sorts maps
	return "v1:" + strconv.FormatUint(class.Sum64(), 10)
}

type Reserved struct {
	*api.NodeReservedResources
	Cpu struct {
		CpuShares        uint64
		ReservedCpuCores []uint16
	}
}

type NodeStub struct {
	*api.NodeListStub
	NodeResources     *NodeResources `json:",omitempty"`
	ReservedResources *Reserved      `json:",omitempty"`
	HostVolumes       map[string]*api.HostVolumeInfo
}

type NodeResources struct {
	*api.NodeResources
	Networks     []any
	NodeNetworks []NodeNetwork
	Processors   struct{ Topology Topology }
}

type NodeNetwork struct {
	Mode       string
	Device     string
	MacAddress string
	Speed      int
	Addresses  []NodeAddress
}

type NodeAddress struct{ Family, Alias, Address, Gateway, ReservedPorts string }

// Topology has all cores on one socket: more is not measured.
type Topology struct {
	Nodes                  []int
	Distances              [][]int
	Cores                  []Core
	OverrideTotalCompute   int
	OverrideWitholdCompute int
}

type Core struct {
	SocketID   int
	NodeID     int
	ID         uint16
	Grade      bool
	Disable    bool
	BaseSpeed  int
	MaxSpeed   int
	GuessSpeed int
}

// nodeResourcesOf returns a node's resources, also in the forms that the SDK lacks.
func nodeResourcesOf(n *api.Node) *NodeResources {
	w := &NodeResources{NodeResources: n.NodeResources}
	for _, network := range n.NodeResources.Networks {
		w.Networks = append(w.Networks, Sparse(network))
		known := slices.IndexFunc(w.NodeNetworks, func(one NodeNetwork) bool { return one.Device == network.Device })
		if known < 0 {
			known = len(w.NodeNetworks)
			w.NodeNetworks = append(w.NodeNetworks, NodeNetwork{
				Mode: network.Mode, Device: network.Device, Speed: ptr.Deref(network.MBits),
			})
		}
		family := "ipv6"
		if net.ParseIP(network.IP).To4() != nil {
			family = "ipv4"
		}
		at := &w.NodeNetworks[known].Addresses
		*at = append(*at, NodeAddress{Family: family, Alias: "default", Address: network.IP})
	}
	speed, _ := strconv.Atoi(n.Attributes["cpu.frequency"]) // 0 when the machine does not say
	topology := &w.Processors.Topology
	topology.Nodes = []int{0}
	for _, id := range n.NodeResources.Cpu.ReservableCpuCores {
		topology.Cores = append(topology.Cores, Core{ID: id, Grade: true, BaseSpeed: speed})
	}
	return w
}
