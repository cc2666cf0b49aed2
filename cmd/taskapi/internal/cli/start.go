package cli

import (
	"log/slog"
	"os"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner"
	"taskapi/allocrunner/cluster/stores"
	"taskapi/allocrunner/consul"
	"taskapi/allocrunner/datadir"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/identity"
	"taskapi/identity/revocation"
)

var _ agent.Lock = (*datadir.Lock)(nil)

// agentEvents prints the events of an agent, and flushes its log with them.
type agentEvents struct {
	*printer
	log    *linewriter.Writer
	layout layout
	output *taskOutput // nil when it is not printed
}

var _ agent.Events = agentEvents{}

func (e agentEvents) TaskEvent(task string, event *api.TaskEvent) {
	e.taskEvent(task, event)
	if event.Type == api.TaskStarted {
		e.output.started(task)
	}
}

func (e agentEvents) AllocEvent(kind, message string, pairs ...string) {
	e.allocEvent(kind, message, pairs...)
}
func (e agentEvents) Ended(alloc *api.Allocation, why string) {
	e.output.finish()
	e.ended(alloc, why)
}

func (e agentEvents) Fit(alloc *api.Allocation) { e.fit(alloc) }
func (e agentEvents) Flush()                    { flushAll(e.queue, e.log) }
func (e agentEvents) Announce(kind string, alloc *api.Allocation) {
	e.announce(time.Now(), kind, alloc, e.layout)
}

// agentConfig returns what every agent of this process has in common. The caller closes its Cluster when the agent has ended.
func agentConfig(l layout, id string, lock agent.Lock, logger *slog.Logger, settings agent.Settings, p *printer, log *linewriter.Writer, w Environment) agent.Config {
	return agent.Config{
		Settings: settings,
		Factory:  allocrunner.WithDrivers(settings.TaskDrivers()),
		Paths: agent.Paths{
			Alloc:           l.Alloc(id),
			OperatorSocket:  l.OperatorSocket(id),
			OperatorToken:   l.OperatorToken(id),
			OperatorSecrets: l.OperatorSecrets(id),
			TaskSocket:      func(task string) string { return l.TaskSocket(id, task) },
		},
		Lock:    lock,
		Keyring: func() (*identity.Keyring, error) { return l.openKeyring(settings.SealKey) },
		Cluster: stores.Open(stores.Disk, l.Cluster()),
		Revocations: func(longest time.Duration) (*revocation.List, error) {
			return revocation.Open(revocation.Config{Dir: l.Revocations(), MaxTTL: longest})
		},
		DataDir:       string(l.Dir),
		Lives:         l.Lives,
		ConsulSecrets: consul.SecretsFromEnv(w.getenv),

		Events:     agentEvents{p, log, l, nil},
		Logger:     logger,
		Version:    w.Version,
		RuntimeDir: w.getenv("XDG_RUNTIME_DIR"),
		Signals:    make(chan os.Signal, 2),
		TuneGC:     w.getenv("GOGC") == "", // the operator's choice
		Resume:     "'" + l.Command("takeover", id) + "'",
	}
}
