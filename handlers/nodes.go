package handlers

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers/apierror"
)

// Machine is what there is to know of the machine that runs the allocation.
type Machine interface {
	// Node returns the machine as it is measured now. The API fills in who it is.
	Node() *api.Node
	// Metadata returns the metadata that was set, never nil.
	Metadata() (map[string]string, error)
	// SetMetadata sets values, or removes them where nil is given, and returns all that there are then. Errors: apierror.Invalid, and nothing
	// has changed.
	SetMetadata(changes map[string]*string) (map[string]string, error)
}

// node returns this machine as Nomad's API has it. It has no HTTP address: clients that would go there directly go on with this socket.
func (a *API) node(current *api.Allocation) (*wireNode, error) {
	if a.config.Machine == nil {
		return nil, apierror.New(apierror.NoRoute)
	}
	metadata, err := a.config.Machine.Metadata()
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	agent, n := &a.config.Agent, a.config.Machine.Node()
	n.ID, n.Name, n.Datacenter, n.NodePool, n.Meta = agent.NodeID, agent.NodeName, agent.Datacenter, nodePool, metadata
	n.Attributes["nomad.version"], n.Attributes["taskapi.version"] = agent.NomadVersion, agent.Version
	n.StatusUpdatedAt = current.CreateTime / 1e9
	n.CreateIndex, n.ModifyIndex = current.CreateIndex, current.CreateIndex
	n.Links, n.HostVolumes = map[string]string{}, map[string]*api.HostVolumeInfo{}
	n.CSIControllerPlugins, n.CSINodePlugins = map[string]*api.CSIInfo{}, map[string]*api.CSIInfo{}
	n.Events = []*api.NodeEvent{{
		Message: "Node registered", Subsystem: "Cluster", Timestamp: time.Unix(n.StatusUpdatedAt, 0).UTC(),
	}}
	return wireNodeOf(n, current.ModifyIndex, a.keyID()), nil
}

// nodeList answers GET /v1/nodes: this machine. resources=true adds its resources, and os=true its operating system.
func (a *API) nodeList(ctx context.Context, r *request) (answer, error) {
	resources, err := r.flag("resources", false)
	if err != nil {
		return answer{}, err
	}
	system, err := r.flag("os", false)
	if err != nil {
		return answer{}, err
	}
	list, err := newList(r, listing[*wireNode]{
		order: byID, uuid: true,
		id:      func(n *wireNode) string { return n.ID },
		stub:    func(n *wireNode) any { return nodeStubOf(n, resources, system) },
		matched: func(n *wireNode) any { return n.Node },
	})
	if err != nil {
		return answer{}, err
	}
	current, err := a.withJob(ctx, r)
	if err != nil {
		return answer{}, err
	}
	n, err := a.node(current)
	if err != nil {
		return answer{}, err
	}
	return list.answer([]*wireNode{n}, current.ModifyIndex)
}

func nodeStubOf(n *wireNode, resources, system bool) *wireNodeStub {
	stub := &wireNodeStub{HostVolumes: n.HostVolumes, NodeListStub: &api.NodeListStub{
		ID: n.ID, Name: n.Name, Datacenter: n.Datacenter, NodePool: n.NodePool, NodeClass: n.NodeClass, Version: n.Attributes["nomad.version"],
		Address: n.Attributes["unique.network.ip-address"], Status: n.Status, SchedulingEligibility: n.SchedulingEligibility, Drivers: n.Drivers,
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

// ownNode returns the caller's allocation when the path names this machine. Errors: NoNode.
func (a *API) ownNode(ctx context.Context, r *request) (*api.Allocation, error) {
	if err := checkUUID("node ID", r.param("node")); err != nil {
		return nil, err
	}
	if !strings.EqualFold(r.param("node"), a.config.Agent.NodeID) {
		return nil, apierror.New(apierror.NoNode)
	}
	return a.withJob(ctx, r)
}

// nodeGet answers GET /v1/node/:node.
func (a *API) nodeGet(ctx context.Context, r *request) (answer, error) {
	current, err := a.ownNode(ctx, r)
	if err != nil {
		return answer{}, err
	}
	n, err := a.node(current)
	if err != nil {
		return answer{}, err
	}
	encoded, err := encode(n)
	return answer{body: encoded, index: current.ModifyIndex}, err
}

// nodeAllocations answers GET /v1/node/:node/allocations with the caller's own, if it may read it; others of this
// machine are not its to see.
func (a *API) nodeAllocations(ctx context.Context, r *request) (answer, error) {
	current, err := a.ownNode(ctx, r)
	if err != nil {
		return answer{}, err
	}
	list := []*wireAllocation{}
	if r.Principal.Capabilities.Has(auth.ReadJob) {
		list = append(list, wireAllocationOf(current, a.keyID()))
	}
	encoded, err := encode(list)
	return answer{body: encoded, index: current.ModifyIndex}, err
}

// metadata answers GET /v1/client/metadata. There is no static metadata here, as a Nomad agent's configuration has.
func (a *API) metadata(_ context.Context, r *request) (answer, error) {
	query, err := r.values()
	if err != nil {
		return answer{}, err
	}
	if err := a.checkNode(query.Get("node_id")); err != nil {
		return answer{}, err
	}
	values, err := a.config.Machine.Metadata()
	if err != nil {
		return answer{}, fmt.Errorf("metadata: %w", err)
	}
	return respond(metadataOf(values))
}

// maxMetadata is the ceiling of the body of a change of metadata: all that is kept, in JSON's quotes.
const maxMetadata = 512 << 10

// setMetadata answers PUT /v1/client/metadata: a value of null removes a key.
func (a *API) setMetadata(_ context.Context, r *request) (answer, error) {
	var want api.NodeMetaApplyRequest
	if err := r.decode(&want, false); err != nil {
		return answer{}, err
	}
	if err := a.checkNode(want.NodeID); err != nil {
		return answer{}, err
	}
	values, err := a.config.Machine.SetMetadata(want.Meta)
	if err != nil {
		return answer{}, fmt.Errorf("set metadata: %w", err)
	}
	if alloc, ok := r.visible(); ok {
		current := alloc.Snapshot()
		if n, err := a.node(current); err == nil {
			a.announce(current.ID, nodeNote(n))
		}
	}
	return respond(metadataOf(values))
}

// checkNode returns an error for another node than this machine, which may be left out, or when there is nothing to know of it.
func (a *API) checkNode(id string) error {
	if a.config.Machine == nil {
		return apierror.New(apierror.NoRoute)
	}
	return a.checkNodeID(id)
}

// checkNodeID returns an error for the ID of another node than this machine; an empty one stands for it.
func (a *API) checkNodeID(id string) error {
	if id != "" && !strings.EqualFold(id, a.config.Agent.NodeID) {
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
