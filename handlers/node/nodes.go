package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/list"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/wire"
)

// Machine is the machine that runs the allocation.
type Machine interface {
	// Node returns the machine as it is measured now. The API adds its identity.
	Node() *api.Node
	// Metadata returns the metadata that was set, never nil.
	Metadata() (map[string]string, error)
	// SetMetadata sets values, removes those that are nil, and returns all values. Errors: apierror.Invalid, and
	// nothing has changed.
	SetMetadata(changes map[string]*string) (map[string]string, error)
}

// Describe returns this machine as Nomad's API has it. It has no HTTP address, so that clients which would connect to
// it stay on this socket.
func (c *Config) Describe(current *api.Allocation) (*wire.Node, error) {
	if c.Machine == nil {
		return nil, apierror.New(apierror.NoRoute)
	}
	metadata, err := c.Machine.Metadata()
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	agent, n := &c.Agent, c.Machine.Node()
	agent.Complete(n, metadata)
	n.StatusUpdatedAt = current.CreateTime / 1e9
	n.CreateIndex, n.ModifyIndex = current.CreateIndex, current.CreateIndex
	n.Events = []*api.NodeEvent{{
		Message: "Node registered", Subsystem: "Cluster", Timestamp: time.Unix(n.StatusUpdatedAt, 0).UTC(),
	}}
	return wire.NodeOf(n, current.ModifyIndex, c.KeyID()), nil
}

// Complete gives a measured machine the identity that the API shows.
func (a *Agent) Complete(n *api.Node, metadata map[string]string) {
	n.ID, n.Name, n.Datacenter, n.NodePool, n.Meta = a.NodeID, a.NodeName, a.Datacenter, wire.NodePool, metadata
	n.Attributes["nomad.version"], n.Attributes["taskapi.version"] = a.NomadVersion, a.Version
	n.Links = map[string]string{}
	if n.HostVolumes == nil {
		n.HostVolumes = map[string]*api.HostVolumeInfo{}
	}
	n.CSIControllerPlugins, n.CSINodePlugins = map[string]*api.CSIInfo{}, map[string]*api.CSIInfo{}
}

// listing says how nodes are listed. resources=true adds the resources, and os=true the operating system.
func listing(r *route.Request) list.Listing[*wire.Node] {
	resources, system := r.Flag("resources", false), r.Flag("os", false)
	return list.Listing[*wire.Node]{
		Order: list.ByID, UUID: true,
		ID:      func(n *wire.Node) string { return n.ID },
		Stub:    func(n *wire.Node) any { return nodeStubOf(n, resources, system) },
		Matched: func(n *wire.Node) any { return n.Node },
	}
}

func (h *handlers) list(_ *route.Request, current *api.Allocation) ([]*wire.Node, error) {
	n, err := h.Describe(current)
	return []*wire.Node{n}, err
}

func nodeStubOf(n *wire.Node, resources, system bool) *wire.NodeStub {
	stub := &wire.NodeStub{HostVolumes: n.HostVolumes, NodeListStub: &api.NodeListStub{
		ID: n.ID, Name: n.Name, Datacenter: n.Datacenter, NodePool: n.NodePool, NodeClass: n.NodeClass,
		Version: n.Attributes["nomad.version"], Address: n.Attributes["unique.network.ip-address"],
		Status: n.Status, SchedulingEligibility: n.SchedulingEligibility, Drivers: n.Drivers,
		CreateIndex: n.CreateIndex, ModifyIndex: n.ModifyIndex,
	}}
	if resources {
		stub.NodeResources, stub.ReservedResources = n.NodeResources, n.ReservedResources
	}
	if system {
		stub.Attributes = map[string]string{"os.name": n.Attributes["os.name"]}
	}
	return stub
}

// own returns a handler that answers with the result of read, when the path names this machine. Errors: NoNode.
func (h *handlers) own(read func(*route.Request, *api.Allocation) (any, error)) route.Handler {
	handle := route.Reading(read)
	return func(ctx context.Context, r *route.Request) (route.Answer, error) {
		if err := route.CheckUUID("node ID", r.Param("node")); err != nil {
			return route.Answer{}, err
		}
		if err := h.checkNodeID(r.Param("node")); err != nil {
			return route.Answer{}, err
		}
		return handle(ctx, r)
	}
}

func (h *handlers) get(_ *route.Request, current *api.Allocation) (any, error) {
	return h.Describe(current)
}

// allocations is GET /v1/node/:node/allocations: the caller's own, if it may read it; others of this machine are not
// its to see.
func (h *handlers) allocations(r *route.Request, current *api.Allocation) (any, error) {
	list := []*wire.Allocation{}
	if r.Principal.Capabilities.Has(auth.ReadJob) {
		list = append(list, wire.AllocationOf(current, h.KeyID()))
	}
	return list, nil
}

// metadata answers GET /v1/client/metadata. There is no static metadata here, as a Nomad agent's configuration has.
func (h *handlers) metadata(_ context.Context, r *route.Request) (route.Answer, error) {
	if err := h.checkNodeID(r.Query().Get("node_id")); err != nil {
		return route.Answer{}, err
	}
	values, err := h.Machine.Metadata()
	if err != nil {
		return route.Answer{}, fmt.Errorf("metadata: %w", err)
	}
	return route.Respond(metadataOf(values))
}

// maxMetadata is the ceiling of the body of a change of metadata: everything that is kept, in JSON's quotes.
const maxMetadata = 512 << 10

// setMetadata answers PUT /v1/client/metadata: a value of null removes a key.
func (h *handlers) setMetadata(
	_ context.Context, r *route.Request, want *api.NodeMetaApplyRequest,
) (route.Answer, error) {
	if err := h.checkNodeID(want.NodeID); err != nil {
		return route.Answer{}, err
	}
	values, err := h.Machine.SetMetadata(want.Meta)
	if err != nil {
		return route.Answer{}, fmt.Errorf("set metadata: %w", err)
	}
	if alloc, ok := r.Visible(); ok {
		current := alloc.Snapshot()
		if n, err := h.Describe(current); err == nil {
			h.Changed(current, n)
		}
	}
	return route.Respond(metadataOf(values))
}

// checkNodeID returns an error for the ID of another node than this machine; an empty one stands for it.
func (h *handlers) checkNodeID(id string) error {
	if id != "" && !strings.EqualFold(id, h.Agent.NodeID) {
		return apierror.New(apierror.NoNode)
	}
	return nil
}

func metadataOf(values map[string]string) api.NodeMetaResponse {
	dynamic := make(map[string]*string, len(values))
	for key, value := range values {
		dynamic[key] = &value
	}
	return api.NodeMetaResponse{Meta: values, Dynamic: dynamic, Static: map[string]string{}}
}

// pools are those that Nomad always has. The one machine is in both.
var pools = []*api.NodePool{
	{Name: "all", Description: "Node pool with all nodes in the cluster.", CreateIndex: 1, ModifyIndex: 1},
	{Name: wire.NodePool, Description: "Default node pool.", CreateIndex: 1, ModifyIndex: 1},
}

// poolListing says how node pools are listed.
var poolListing = list.Listing[*api.NodePool]{
	Order: list.ByID,
	ID:    func(p *api.NodePool) string { return p.Name },
	Stub:  func(p *api.NodePool) any { return wirePoolOf(p) },
}

// listPools answers GET /v1/node/pools.
func listPools(r *route.Request) (route.Answer, error) {
	l, err := list.New(r, poolListing)
	if err != nil {
		return route.Answer{}, err
	}
	return l.Answer(pools, 0)
}

// poolOf returns the pool that the path names, nil for none.
func poolOf(r *route.Request) *api.NodePool {
	i := slices.IndexFunc(pools, func(p *api.NodePool) bool { return p.Name == r.Param("pool") })
	if i < 0 {
		return nil
	}
	return pools[i]
}

// pool answers GET /v1/node/pool/:name. Errors: NoPool.
func pool(r *route.Request) (route.Answer, error) {
	p := poolOf(r)
	if p == nil {
		return route.Answer{}, apierror.New(apierror.NoPool)
	}
	return route.Respond(wirePoolOf(p))
}

// poolNodes answers GET /v1/node/pool/:name/nodes. As in Nomad, an unknown pool has no nodes.
func (h *handlers) poolNodes(ctx context.Context, r *route.Request) (route.Answer, error) {
	if poolOf(r) == nil {
		return route.Constant([]any{})(ctx, r)
	}
	return h.nodes(ctx, r)
}

// wirePool has a number for a duration, which the SDK would write in words.
type wirePool struct {
	wirePoolFields
	Hash []byte
}

type wirePoolFields api.NodePool

func wirePoolOf(p *api.NodePool) wirePool { return wirePool{wirePoolFields: wirePoolFields(*p)} }

// hostStats answers GET /v1/client/stats?node_id=, for this machine alone. As in Nomad, it needs node:read, which tasks
// don't have.
func (h *handlers) hostStats(ctx context.Context, r *route.Request) (route.Answer, error) {
	if err := h.checkNodeID(r.Query().Get("node_id")); err != nil {
		return route.Answer{}, err
	}
	usage, at, err := h.Host(ctx)
	if err != nil {
		return route.Answer{}, fmt.Errorf("measure the machine: %w", err)
	}
	return route.Respond(wireHostStats{usage, CPUs(usage), at.UnixNano()})
}

// wireHostStats adds what the SDK lacks.
type wireHostStats struct {
	*api.HostStats
	CPU       []HostCPU
	Timestamp int64
}

// HostCPU adds the sums to the use of one CPU.
type HostCPU struct {
	*api.HostCPUStats
	TotalPercent float64
	TotalTicks   float64 // MHz
}

// CPUs returns the use of each CPU.
func CPUs(s *api.HostStats) []HostCPU {
	cpus, busy := make([]HostCPU, len(s.CPU)), 0.0
	for i, cpu := range s.CPU {
		cpus[i] = HostCPU{HostCPUStats: cpu, TotalPercent: 100 - cpu.Idle}
		busy += cpus[i].TotalPercent
	}
	for i := range cpus {
		if busy > 0 { // each CPU's share of the ticks of all
			cpus[i].TotalTicks = s.CPUTicksConsumed * cpus[i].TotalPercent / busy
		}
	}
	return cpus
}
