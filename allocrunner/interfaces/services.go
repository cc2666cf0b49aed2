package interfaces

import (
	"context"
	"os"

	"github.com/hashicorp/nomad/api"
)

// ServiceInstance is a service of an allocation with its text and address resolved, as a provider makes it known. It is
// shared and never changed.
type ServiceInstance struct {
	// The ID is Nomad's: "_nomad-task-ALLOC-TASK-SERVICE-PORT", for a group's
	// "_nomad-task-ALLOC-group-GROUP-SERVICE-PORT". The address is an IP address or a host name.
	api.ServiceRegistration

	Task string // whose service it is; empty for the group's

	// Service is the block of the job file with its text resolved, for what one provider alone understands, such as its
	// checks. Nil in none.
	Service *api.Service

	// CheckAddresses are where the checks connect to, HOST:PORT, in their order. Empty for a script, and for a check
	// without an address.
	CheckAddresses []string
}

// ServiceProvider makes services known to others: Nomad's registry, or Consul. It tries again by itself while what it
// writes to is away, so its methods return when the services are known or sure to become so, and an error is about a
// service that can't ever be. Methods are called from several goroutines; for one ID one at a time.
type ServiceProvider interface {
	// Name is what a job file's provider attribute says.
	Name() string

	// Register makes services known, or changes those whose IDs are known.
	Register(ctx context.Context, services []*ServiceInstance) error

	// Deregister ends services by their IDs. Those that are not known are no error.
	Deregister(ctx context.Context, ids []string) error

	// Registered returns the IDs of the services of an allocation that are known, also those that an earlier process
	// has registered: a runner that resumes the allocation ends those that it no longer has.
	Registered(ctx context.Context, allocID string) ([]string, error)
}

// CheckingProvider is a ServiceProvider that has services checked by what it writes to, such as Consul's agent. The
// runner runs none of their checks but scripts, in their tasks, and applies check_restart, the allocation's health and
// its API to what Result returns.
type CheckingProvider interface {
	ServiceProvider

	// Result returns the latest result of a check of a registered service, the n-th of its block.
	// The runner calls it once each interval of the check. It does not wait; ok is false while there is none.
	Result(id string, n int) (result CheckResult, ok bool)

	// Feed takes the result of a script check, as each run of it ends. It does not wait.
	Feed(id string, n int, result CheckResult)
}

// CheckResult is what one run of a check has found.
type CheckResult struct {
	Status CheckStatus
	Output string
}

// CheckStatus is whether a check has passed.
type CheckStatus int

// A check has failed, is a warning, which restarts nothing where ignore_warnings says so, or has passed.
const (
	CheckFailure CheckStatus = iota
	CheckWarning
	CheckSuccess
)

// Lease is what others know of an allocation for as long as somebody holds it, such as its registered services.
type Lease interface {
	// Files are what the allocation's keeper keeps open, so that the lease outlives this process while tasks run. Each
	// keeper gets those of the moment at which it starts.
	Files() []*os.File
}
