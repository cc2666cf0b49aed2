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
	"taskapi/allocrunner/deployment"
	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/fingerprint"
	"taskapi/handlers/apierror"
	"taskapi/handlers/node"
)

// datacenter is where the one machine is: Nomad's default name.
const datacenter = "dc1"

// nodeID is this machine under the names that Nomad's API has for one.
type nodeID struct{ id, name string }

// thisNode identifies the machine. The ID is derived from its machine ID (machine-id(5)), which should not be shown as it is, so
// every run on one machine shows the same; without one, from its name.
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

// NewAllocation returns an allocation as a scheduler would have placed it on this machine. The allocation counts the
// versions of its job.
func NewAllocation(id string, job *api.Job, group *api.TaskGroup) *api.Allocation {
	node := thisNode()
	if job.Version != nil {
		job.Version = nil
	}
	return &api.Allocation{
		ID:        id,
		EvalID:    uuid.NewString(),
		Name:      fmt.Sprintf("%s.%s[0]", *job.ID, *group.Name),
		Namespace: *job.Namespace,
		NodeID:    node.id,
		NodeName:  node.name,
		JobID:     *job.ID,
		Job:       job,
		TaskGroup: *group.Name,

		DeploymentID: deployment.NewID(job, group),
	}
}

// machine is this machine for the API.
type machine struct {
	dir      string // what an allocation's disk is measured by
	drivers  *drivers.Registry
	metadata fingerprint.Metadata
}

var _ node.Machine = machine{}

// newMachine returns the machine of an allocation's directory. All allocations of a data directory share its metadata.
func newMachine(allocDir string, shared cluster.Store, known *drivers.Registry) machine {
	return machine{dir: allocDir, drivers: known, metadata: fingerprint.Metadata{
		Store: shared,
		Key:   "nodes/" + thisNode().id + "/meta",
	}}
}

func (m machine) Node() *api.Node { return fingerprint.Node(m.dir, m.drivers) }

// Metadata is bounded in time by the store.
func (m machine) Metadata() (map[string]string, error) {
	values, err := m.metadata.Read(context.Background())
	return values, metadataError(err)
}

func (m machine) SetMetadata(changes map[string]*string) (map[string]string, error) {
	values, err := m.metadata.Apply(context.Background(), changes)
	return values, metadataError(err)
}

// nodeMeta returns a function that reads the metadata for ${meta.…}. When they can't be read, it returns those of the
// last read. Nil without a store.
func (s *wiring) nodeMeta() func() map[string]string {
	if s.cfg.Cluster == nil {
		return nil
	}
	m := newMachine(s.cfg.Dir.Alloc(s.cfg.ID), s.cfg.Cluster, s.cfg.Settings.TaskDrivers())
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

// metadataError returns an error about the metadata as the API has it. What is wrong with the store, such as a full
// disk, is for the operator to mend.
func metadataError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fingerprint.ErrMetadata):
		return apierror.New(apierror.Invalid, err)
	}
	return apierror.New(apierror.Unavailable, err).Because(err)
}
