// Package start has what the commands share that run an allocation in their own process: flags and settings, the job
// file, the agent's configuration, signals that come early, waiting for health, and the causes of a failed start.
package start

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
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/identity"
	"taskapi/identity/revocation"
)

var _ agent.Lock = (*datadir.Lock)(nil)

// AgentEvents prints the events of an agent, and flushes its log with them.
type AgentEvents struct {
	*follow.Printer
	Log    *linewriter.Writer
	Layout base.Layout
	Output *follow.TaskOutput // nil when it is not printed
}

var _ agent.Events = AgentEvents{}

func (e AgentEvents) TaskEvent(task string, event *api.TaskEvent) {
	e.Printer.TaskEvent(task, event)
	if event.Type == api.TaskStarted {
		e.Output.Started(task)
	}
}

func (e AgentEvents) Ended(alloc *api.Allocation, why string) {
	e.Output.Finish()
	e.Printer.Ended(alloc, why)
}

func (e AgentEvents) Flush() { base.FlushAll(e.Queue, e.Log) }

func (e AgentEvents) Announce(kind string, alloc *api.Allocation) {
	e.Printer.Announce(time.Now(), kind, alloc, e.Layout)
}

// AgentConfig returns what every agent of this process has in common. The caller closes its Cluster when the agent has
// ended.
func AgentConfig(l base.Layout, id string, lock agent.Lock, logger *slog.Logger, settings agent.Settings,
	p *follow.Printer, log *linewriter.Writer, w base.Environment) agent.Config {
	return agent.Config{
		Settings: settings,
		Factory:  allocrunner.WithDrivers(settings.TaskDrivers()),
		Dir:      l.Dir,
		ID:       id,
		Lock:     lock,
		Keyring:  func() (*identity.Keyring, error) { return l.OpenKeyring(settings.SealKey) },
		Cluster:  stores.Shared(l.Cluster()),
		Revocations: func(longest time.Duration) (*revocation.List, error) {
			return revocation.Open(revocation.Config{Dir: l.Revocations(), MaxTTL: longest})
		},
		ConsulSecrets: consul.SecretsFromEnv(w.Getenv),

		Events:     AgentEvents{p, log, l, nil},
		Logger:     logger,
		Version:    w.Version,
		RuntimeDir: w.Getenv("XDG_RUNTIME_DIR"),
		Signals:    make(chan os.Signal, 2),
		TuneGC:     w.Getenv("GOGC") == "", // the operator's choice
		Resume:     "'" + l.Command("takeover", id) + "'",
	}
}
