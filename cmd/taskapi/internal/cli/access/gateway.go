package access

import (
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/cmd/taskapi/internal/gateway"
	"taskapi/cmd/taskapi/internal/settings"
)

// The environment that Nomad gives a task.
const (
	secretsDir = "NOMAD_SECRETS_DIR"
	allocDir   = "NOMAD_ALLOC_DIR"
)

func Gateway(w base.Environment) *cobra.Command {
	var address, dir string
	var verbose bool
	var given start.SettingFlags
	cmd := &cobra.Command{
		Use:   "gateway [flags] TASK...",
		Short: "Give tasks of a Nomad job sockets that answer for the cluster's Task API (experimental)",
		Long: `The gateway is experimental: flags, files and answers may change in any version.

Runs in a job of a Nomad cluster, as a prestart sidecar. Each TASK of its group gets a socket,
$` + allocDir + `/taskapi/TASK/api.sock, where Nomad's API answers to that task's own identity.

Bad tokens never reach the agent. One blocking query for each resource and token is fanned out to all readers; changes,
streams and commands are passed on with the caller's token. While the agent is away, reads are answered for 30 seconds.
docs/gateway.md has a job file.`,
		Example: `  taskapi gateway web worker
  taskapi gateway --upstream https://nomad.example:4646 -o audit.path=/var/log/taskapi.log web`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return base.Usagef("TASK is missing: name the tasks of the group that get a socket")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if address == "" {
				secrets := w.Getenv(secretsDir)
				if secrets == "" {
					return base.Usagef("%s is not set: run the gateway as a task of a Nomad job, or give --upstream", secretsDir)
				}
				address = "unix://" + filepath.Join(secrets, "api.sock")
			}
			if dir == "" {
				shared := w.Getenv(allocDir)
				if shared == "" {
					return base.Usagef("%s is not set: run the gateway as a task of a Nomad job, or give --dir", allocDir)
				}
				dir = filepath.Join(shared, "taskapi")
			}
			if !filepath.IsAbs(dir) {
				return base.Usagef("--dir %s: give an absolute path", dir)
			}
			_, s, err := given.Next(settings.Record{}, cmd.Flags(), true, w)
			if err != nil {
				return err
			}
			signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // ends nothing: a terminal may close
			ctx, release := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer release()
			return gateway.Run(ctx, gateway.Config{
				Upstream: address, Dir: filepath.Clean(dir), Tasks: args, Settings: s, Getenv: w.Getenv,
				Logger: base.NewLogger(verbose, w),
				Started: func(paths []string) error {
					for _, path := range paths {
						_ = w.Printf("listening on %s\n", path) // nobody has to read it
					}
					return nil
				},
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&address, "upstream", "",
		"`ADDRESS` of the agent: unix:///PATH or https://HOST:PORT (default the task's own socket, $"+secretsDir+"/api.sock)")
	f.StringVar(&dir, "dir", "", "`DIR` of the sockets (default $"+allocDir+"/taskapi)")
	f.BoolVarP(&verbose, "verbose", "v", false, "log more than warnings to standard error")
	given.Add(cmd)
	return cmd
}
