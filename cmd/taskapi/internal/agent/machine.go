package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/fleet"
	"taskapi/allocrunner/deployment"
	"taskapi/allocrunner/devices"
	"taskapi/allocrunner/fingerprint"
	"taskapi/allocrunner/taskenv"
	"taskapi/handlers/apierror"
	"taskapi/handlers/node"
)

// datacenter is Nomad's default name of a datacenter.
const datacenter = "dc1"

// nodeID is this machine's ID and name in Nomad's API.
type nodeID struct{ id, name string }

// thisNode identifies the machine. The ID is the same in each run: it is derived from the machine ID, which must not be
// shown as it is (machine-id(5)), or from the machine's name where there is none.
func thisNode() nodeID {
	name, err := os.Hostname()
	if err != nil {
		name = "localhost"
	}
	seed, err := os.ReadFile("/etc/machine-id")
	if seed = bytes.TrimSpace(seed); err != nil || len(seed) == 0 {
		seed = []byte(name)
	}
	return nodeID{uuid.NewSHA1(uuid.NameSpaceOID, append([]byte("taskapi node "), seed...)).String(), name}
}

// NewAllocation returns an allocation as a scheduler places it on this machine, the first of its group.
func NewAllocation(id string, job *api.Job, group *api.TaskGroup) *api.Allocation {
	node, own := thisNode(), *job
	return &api.Allocation{
		ID:        id,
		EvalID:    uuid.NewString(),
		Name:      AllocName(*job.ID, *group.Name, 0),
		Namespace: *job.Namespace,
		NodeID:    node.id,
		NodeName:  node.name,
		JobID:     *job.ID,
		Job:       &own,
		TaskGroup: *group.Name,

		DeploymentID: deployment.NewID(job, group),
	}
}

// AllocName returns the name of one of a group's allocations, as Nomad has it.
func AllocName(job, group string, index int) string {
	return fmt.Sprintf("%s.%s[%d]", job, group, index)
}

// machine is this machine for the API.
type machine struct {
	dir      string // the allocation's; the disk is that of its file system
	settings Settings
	metadata fingerprint.Metadata
}

var _ node.Machine = machine{}

// newMachine returns the machine, as seen from an allocation's directory. All allocations of a data directory share the
// machine's metadata.
func newMachine(allocDir string, shared cluster.Store, settings Settings) machine {
	return machine{dir: allocDir, settings: settings, metadata: fingerprint.Metadata{
		Store: shared,
		Key:   "nodes/" + thisNode().id + "/meta",
	}}
}

// NewNode describes the machine of a data directory for an API, and the program that answers.
func NewNode(dataDir string, shared cluster.Store, settings Settings, version string) (node.Machine, node.Agent) {
	this := thisNode()
	return newMachine(dataDir, shared, settings), node.Agent{
		Version: version, NomadVersion: taskenv.NomadVersion, Region: "global", Datacenter: datacenter,
		NodeID: this.id, NodeName: this.name,
	}
}

func (m machine) Node() *api.Node {
	n := fingerprint.Node(m.dir, m.settings.TaskDrivers())
	n.NodeResources.Devices = devices.NodeResources(m.settings.Devices)
	n.HostVolumes = map[string]*api.HostVolumeInfo{}
	for _, v := range m.settings.HostVolumes {
		n.HostVolumes[v.Name] = &api.HostVolumeInfo{Path: v.Path, ReadOnly: v.ReadOnly}
	}
	return n
}

// nodeAgent describes this process and its machine.
func (s *wiring) nodeAgent(alloc *api.Allocation) node.Agent {
	return node.Agent{
		Version:      s.cfg.Version,
		NomadVersion: taskenv.NomadVersion,
		Region:       *alloc.Job.Region,
		Datacenter:   datacenter,
		NodeID:       alloc.NodeID,
		NodeName:     alloc.NodeName,
	}
}

// publisher returns what shows the allocation and this machine to other machines.
func (s *wiring) publisher(store cluster.Store) *fleet.Publisher {
	return &fleet.Publisher{Store: store, Logger: s.logger, Alloc: s.runner, Node: func() *api.Node {
		m, about := newMachine(s.cfg.Dir.Alloc(s.cfg.ID), s.cfg.Cluster, s.cfg.Settings), s.nodeAgent(s.runner.Alloc())
		n := m.Node()
		values, _ := m.Metadata() // which other machines can do without
		about.Complete(n, values)
		return n
	}}
}

// elsewhere returns a function that says where a machine of the fleet runs an allocation, empty when it does not know.
func elsewhere(all *fleet.Fleet) func(context.Context, string) string {
	return func(ctx context.Context, id string) string {
		alloc, err := all.Allocation(ctx, id)
		if err != nil {
			return ""
		}
		return fmt.Sprintf("%s runs on the machine %s, node %s", alloc.Name, alloc.NodeName, alloc.NodeID)
	}
}

// Metadata returns the metadata. The store bounds the time that this takes.
func (m machine) Metadata() (map[string]string, error) {
	values, err := m.metadata.Read(context.Background())
	return values, metadataError(err)
}

func (m machine) SetMetadata(changes map[string]*string) (map[string]string, error) {
	values, err := m.metadata.Apply(context.Background(), changes)
	return values, metadataError(err)
}

// nodeMeta returns a function that returns the metadata for ${meta.…}: those of the last successful read if they can't
// be read now. It is nil without a store.
func (s *wiring) nodeMeta() func() map[string]string {
	if s.cfg.Cluster == nil {
		return nil
	}
	m := newMachine(s.cfg.Dir.Alloc(s.cfg.ID), s.cfg.Cluster, s.cfg.Settings)
	var mu sync.Mutex // guards last
	var last map[string]string
	return func() map[string]string {
		mu.Lock()
		defer mu.Unlock()
		values, err := m.metadata.Read(context.Background())
		if err != nil {
			s.logger.Warn("${meta.…} is as it was: the machine's metadata can't be read", "error", err)
			return last
		}
		last = values
		return values
	}
}

// metadataError returns the API's error for an error about the metadata. The client reads what is wrong with the store,
// such as a full disk, since the operator can mend that.
func metadataError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fingerprint.ErrMetadata):
		return apierror.New(apierror.Invalid, err)
	}
	return apierror.New(apierror.Unavailable, err).Because(err)
}
