package interfaces

import (
	"context"

	"github.com/hashicorp/nomad/api"
)

// ServiceInstance is a service of an allocation with its text and address resolved, as a provider makes it known. It is shared and never
// changed.
type ServiceInstance struct {
	ID   string // Nomad's: "_nomad-task-ALLOC-TASK-SERVICE-PORT", for a group's "_nomad-task-ALLOC-group-GROUP-SERVICE-PORT"
	Task string // whose service it is; empty for the group's

	Name    string
	Tags    []string          // with canary_tags in their place for a canary
	Meta    map[string]string // likewise
	Address string            // an IP address or a host name
	Port    int

	Namespace, JobID, AllocID, NodeID, Datacenter string

	// Checks are the service's, resolved, in the order of the job file, for a provider that runs them.
	Checks []api.ServiceCheck

	// Service is the block of the job file with its text resolved, for what one provider alone understands. Nil in none.
	Service *api.Service
}

// ServiceProvider makes services known to others: Nomad's registry, or Consul. It tries again by itself while what it writes to is away, so
// its methods return when the services are known or sure to become so, and an error is about a service that can't ever be. Methods are called
// from several goroutines; for one ID one at a time.
type ServiceProvider interface {
	// Name is what a job file's provider attribute says.
	Name() string

	// Register makes services known, or changes those whose IDs are known.
	Register(ctx context.Context, services []*ServiceInstance) error

	// Deregister ends services by their IDs. Those that are not known are no error.
	Deregister(ctx context.Context, ids []string) error
}
