package agent

import (
	"context"
	"time"

	"taskapi/allocrunner/fingerprint"
	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/metrics"
	"taskapi/handlers"
)

// usageTimeout is how long the measurements wait for those of the tasks and of the machine. Without them the rest is answered.
const usageTimeout = 2 * time.Second

// measure returns everything that this process counts, and what the allocation and the machine use.
func (s *wiring) measure(ctx context.Context) []handlers.Metric {
	sources := metrics.Sources{
		Auth: s.authStats(), Sockets: s.sockets.stats(), Alloc: s.runner.Alloc(), Datacenter: datacenter,
		Node: fingerprint.Node(s.paths.Alloc, s.settings.TaskDrivers()), NodeName: thisNode().name,
	}
	sources.Checks, _ = s.runner.Checks()
	if s.audit != nil {
		sources.Audit = new(s.audit.Stats())
	}
	if v, ok := s.runner.(interfaces.HookCounter); ok {
		sources.Hooks = v.HookStats()
	}
	ofTasks, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	if samples, err := s.runner.Stats(ofTasks, usageTimeout); err == nil {
		sources.Usage = <-samples // nil when the time is over
	}
	ofHost, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	if host, _, err := s.host.Stats(ofHost); err == nil {
		sources.Host = host
	}
	return metrics.Measure(sources)
}
