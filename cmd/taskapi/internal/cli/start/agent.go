// Package start has the common parts of the commands that run an allocation in their own process: flags and settings,
// the job file, the agent's configuration, signals that come early, waiting for health, and the causes of a failed
// start.
package start

import (
	"log/slog"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"taskapi/allocrunner"
	"taskapi/allocrunner/children"
	"taskapi/allocrunner/consul"
	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/identity"
	"taskapi/identity/revocation"
)

var _ agent.Lock = (*datadir.Lock)(nil)

var _ agent.Events = (*follow.Printer)(nil)

// AgentConfig returns the common configuration of all agents of this process. The printer prints its events, and is
// flushed with the log. The caller closes the agent's Cluster when the agent has ended.
func AgentConfig(l base.Layout, id string, lock agent.Lock, logger *slog.Logger, settings agent.Settings,
	p *follow.Printer, log *linewriter.Writer, w base.Environment) agent.Config {
	p.Layout, p.Log = l, log
	shared, several := l.OpenShared()
	return agent.Config{
		Settings: settings,
		Factory:  Factory(settings, nil),
		Dir:      l.Dir,
		ID:       id,
		Lock:     lock,
		Keyring:  func() (*identity.Keyring, error) { return l.OpenKeyring(settings.SealKey) },
		Cluster:  shared,
		Revocations: func(longest time.Duration) (*revocation.List, error) {
			return revocation.Open(revocation.Config{Dir: l.Revocations(), MaxTTL: longest})
		},
		Clustered:     several,
		ConsulSecrets: consul.SecretsFromEnv(w.Getenv),

		Events:     p,
		Refusals:   new(auth.Refusals),
		Logger:     logger,
		Version:    w.Version,
		RuntimeDir: w.Getenv("XDG_RUNTIME_DIR"),
		Signals:    make(chan os.Signal, 2),
		TuneGC:     w.Getenv("GOGC") == "", // the operator's choice
		Resume:     "'" + l.Command("takeover", id) + "'",
	}
}

// Factory returns the factory of all runners. Without a host, a job that starts children only ends.
func Factory(settings agent.Settings, host children.Host) interfaces.Factory {
	return children.Factory(allocrunner.WithDrivers(settings.TaskDrivers()), host)
}

// ServiceManager returns the service manager that $NOTIFY_SOCKET names; with $WATCHDOG_USEC, it wants signs of life.
func ServiceManager() (agent.ServiceManager, error) {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return agent.ServiceManager{}, nil
	}
	within, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return agent.ServiceManager{}, base.Usage(err)
	}
	send := func(state string) error {
		_, err := daemon.SdNotify(false, state)
		return err
	}
	return agent.ServiceManager{Send: send, Watchdog: within}, nil
}
