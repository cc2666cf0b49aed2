package interfaces

import (
	"context"
	"os"

	"github.com/hashicorp/nomad/api"
)

// ServiceInstance is a service of an allocation as a provider registers it, with its text and address resolved. It is
// shared and never changed.
type ServiceInstance struct {
	// The ID is Nomad's: "_nomad-task-ALLOC-TASK-SERVICE-PORT", for a group's
	// "_nomad-task-ALLOC-group-GROUP-SERVICE-PORT". The address is an IP address or a host name.
	api.ServiceRegistration

	Task string // whose service it is; empty for the group's

	// Service is the block of the job file with its text resolved, for attributes that only one provider understands,
	// such as its checks. It is never nil.
	Service *api.Service

	// CheckAddresses are where the checks connect to, HOST:PORT, in their order. Empty for a script, and for a check
	// without an address.
	CheckAddresses []string
}

// ServiceProvider registers services: in Nomad's registry, or in Consul. It tries again by itself while its registry is
// unavailable, so its methods return when the services are registered or certain to become registered. An error is
// about a service that can never be registered. Methods are called from several goroutines; for one ID one at a time.
type ServiceProvider interface {
	// Name is what a job file's provider attribute says.
	Name() string

	// Register registers services, or changes those whose IDs are registered.
	Register(ctx context.Context, services []*ServiceInstance) error

	// Deregister removes services by their IDs. Unknown IDs are no error.
	Deregister(ctx context.Context, ids []string) error

	// Registered returns the IDs of an allocation's registered services, including those that an earlier process has
	// registered. A runner that resumes the allocation deregisters the services that it no longer has.
	Registered(ctx context.Context, allocID string) ([]string, error)
}

// CheckingProvider is a ServiceProvider whose registry, such as Consul's agent, checks the services. The runner runs
// only their script checks, in their tasks. It uses Result for check_restart, for the allocation's health and for its
// API.
type CheckingProvider interface {
	ServiceProvider

	// Result returns the latest result of a check of a registered service, the n-th of its block.
	// The runner calls it once each interval of the check. It does not wait; ok is false while there is none.
	Result(id string, n int) (result CheckResult, ok bool)

	// Feed takes the result of a script check after each run. It does not wait.
	Feed(id string, n int, result CheckResult)
}

// CheckResult is what one run of a check has found.
type CheckResult struct {
	Status CheckStatus
	Output string
}

// CheckStatus is whether a check has passed.
type CheckStatus int

// A check has failed, has a warning, which restarts nothing with ignore_warnings, or has passed.
const (
	CheckFailure CheckStatus = iota
	CheckWarning
	CheckSuccess
)

// Lease keeps data about an allocation visible to others, such as its registered services, as long as somebody holds
// the lease.
type Lease interface {
	// Files are the files that the allocation's keeper keeps open, so that the lease outlives this process while tasks
	// run. Each keeper gets the files of the moment at which it starts.
	Files() []*os.File
}
