// Package machine has the command that serves the API of a whole machine.
package machine

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/agentlog"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/cmd/taskapi/internal/machine"
	"taskapi/cmd/taskapi/internal/settings"
	"taskapi/identity/revocation"
	"taskapi/internal/memory"
)

// Agent returns taskapi agent.
func Agent(w base.Environment) *cobra.Command {
	flags := start.SettingFlags{Agent: true}
	var dataDir string
	var noResume, verbose bool
	var remote machine.TLS
	cmd := &cobra.Command{
		Use:   "agent [flags]",
		Short: "Serve the API of this machine: all allocations of a data directory",
		Long: `Serves Nomad's API for all allocations of a data directory, running and ended, on one socket: operator.sock
in the data directory. Its token is in operator.token beside it. The stock nomad command and Nomad's SDK run jobs there:
each allocation gets a taskapi of its own in the background, as with 'taskapi run --all --detach', which outlives the
agent. The settings given here are those of the jobs that are registered there.

The agent resumes allocations whose taskapi has exited, also after a start of the machine. One whose taskapi exits
again and again is resumed eight times, at growing intervals. What was stopped or has completed stays so.

The agent also removes ended allocations, by age, number and space: the settings gc_* and job_gc_threshold.

With --listen, clients of other machines can connect by TLS. Each needs a certificate that the --ca has signed, and the
token.

SIGINT and SIGTERM end the agent. The allocations run on.`,
		Example: `  taskapi agent
  taskapi agent --listen 192.0.2.1:4646 --cert server.pem --key server-key.pem --ca ca.pem`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := configOf(cmd, &flags, dataDir, verbose, w)
			if err != nil {
				return err
			}
			config.Resume = !noResume
			if err := checkRemote(cmd, &remote); err != nil {
				return err
			}
			if remote.Address != "" {
				config.Listen = &remote
			}
			tell := config.Notify
			config.Notify = func(state string) {
				tell(state)
				_ = w.Printf("listening on %s\n", machine.Socket(string(config.Dir))) // nobody has to read it
				if remote.Address != "" {
					_ = w.Printf("listening on %s\n", remote.Address)
				}
			}
			return run(cmd.Context(), config)
		},
	}
	f := cmd.Flags()
	f.StringVar(&remote.Address, "listen", "", "also answer clients of other machines, by TLS, at `ADDRESS:PORT`")
	f.StringVar(&remote.Cert, "cert", "", "`FILE` with the certificate for --listen, in PEM form")
	f.StringVar(&remote.Key, "key", "", "`FILE` with the key of the certificate")
	f.StringVar(&remote.CA, "ca", "", "`FILE` with the authority that signs the clients' certificates")
	f.BoolVar(&noResume, "no-resume", false, "leave allocations alone whose taskapi has exited")
	f.BoolVarP(&verbose, "verbose", "v", false, "log more than warnings to standard error")
	flags.AddAll(cmd)
	base.AddDataDir(cmd, &dataDir)
	return cmd
}

// checkRemote reads the files of --listen.
func checkRemote(cmd *cobra.Command, remote *machine.TLS) error {
	all := true
	for _, name := range []string{"cert", "key", "ca"} {
		given := cmd.Flags().Changed(name)
		if given && remote.Address == "" {
			return base.Usagef("--%s is for --listen: give both, or leave out --%s", name, name)
		}
		all = all && given
	}
	switch {
	case remote.Address == "":
		return nil
	case !all:
		return base.Usagef("--listen needs --cert, --key and --ca: without a client's certificate nobody may connect")
	}
	if err := remote.Open(); err != nil {
		return base.Usagef("--listen: %w", err)
	}
	return nil
}

// configOf returns the machine's configuration.
func configOf(
	cmd *cobra.Command, flags *start.SettingFlags, dataDir string, verbose bool, w base.Environment,
) (c machine.Config, err error) {
	_, s, err := flags.Next(settings.Record{}, cmd.Flags(), true, w)
	if err != nil {
		return c, err
	}
	if err := errors.Join(s.CheckAgentUsers(), s.TryFiles()); err != nil {
		return c, base.Usage(err)
	}
	l, err := base.NewLayout(dataDir, w)
	if err != nil {
		return c, err
	}
	if err := l.MakeDir(); err != nil {
		return c, err
	}
	ring, err := l.OpenKeyring(s.SealKey)
	if err != nil {
		return c, err
	}
	revoked, err := revocation.Open(revocation.Config{Dir: l.Revocations(), MaxTTL: s.LongestTTL()})
	if err != nil {
		return c, err
	}
	manager, err := start.ServiceManager()
	if err != nil {
		return c, err
	}
	again, environ, err := commands(flags.Config, w)
	if err != nil {
		return c, err
	}
	log := agentlog.New(base.NewLogger(verbose, w).Handler())
	return machine.Config{
		Dir: l.Dir, Settings: s, Keyring: ring, Revocations: revoked, Cluster: l.OpenCluster(), Clustered: l.Shares(),
		Logger: slog.New(log), Log: log, Version: w.Version,
		Environ: environ, RunFlags: flags.Given(cmd.Flags()), Again: again,
		Notify: func(state string) {
			if manager.Send != nil {
				_ = manager.Send(state) // its own socket tells the process that started this one, too
			}
		},
	}, nil
}

// commands returns what the commands that the agent runs have in common: the record with which they run an allocation
// again, and their environment. They read the agent's settings file, since an allocation remembers no value of it. They
// have no part in the agent's service.
func commands(file string, w base.Environment) (
	again func(settings.Record) (settings.Record, error), environ []string, err error,
) {
	if file != "" {
		if file, err = filepath.Abs(file); err != nil {
			return nil, nil, err
		}
	}
	again = func(before settings.Record) (settings.Record, error) {
		values, err := settings.Machine(file, w.Getenv)
		if err != nil {
			return settings.Record{}, err
		}
		return before.Next(nil, values, w.Getenv)
	}
	for _, pair := range w.Env {
		switch key, _, _ := strings.Cut(pair, "="); key {
		case "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID":
		default:
			environ = append(environ, pair)
		}
	}
	if file != "" {
		environ = append(environ, settings.FileEnv+"="+file) // the last one counts
	}
	return again, environ, nil
}

// run serves until a signal comes.
func run(ctx context.Context, c machine.Config) error {
	defer c.Cluster.Close() // nothing waits to be written
	defer c.Revocations.Close()
	ctx, end := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer end()
	m := machine.New(c)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // ends nothing: a terminal may close
	memory.Bound(1, os.Getenv("GOGC") == "")
	watching, stop := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer background.Wait()
	defer stop()
	background.Go(func() { memory.GiveBack(watching) })
	if err := m.Run(ctx); err != nil {
		return err
	}
	if os.Getenv("NOTIFY_SOCKET") != "" && machine.SystemStops() {
		leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
		defer cancel()
		m.Leave(leaving)
	}
	return nil
}

// leaveTime bounds how long the agent leaves allocations when the machine stops.
const leaveTime = 20 * time.Second
