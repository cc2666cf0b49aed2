package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/fingerprint"
	"taskapi/cmd/taskapi/internal/agentlog"
	"taskapi/handlers"
	"taskapi/handlers/apierror"
)

// machine is this machine for the API.
type machine struct {
	dir      string // what an allocation's disk is measured by
	drivers  *drivers.Registry
	metadata fingerprint.Metadata
}

var _ handlers.Machine = machine{}

// agentLog is the agent's log for the API.
type agentLog struct{ *agentlog.Log }

var _ handlers.AgentLog = agentLog{}

func (l agentLog) Follow(level slog.Level, asJSON bool) (lines <-chan []byte, stop func()) {
	reader := l.Log.Follow(level, asJSON)
	return reader.Lines(), reader.Close
}

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
	m := newMachine(s.paths.Alloc, s.cfg.Cluster, s.settings.TaskDrivers())
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
