package access

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/httpserve"
	"taskapi/cmd/taskapi/internal/proxy"
)

// unixAddr is the environment variable with the address of a task's own socket.
const unixAddr = "NOMAD_UNIX_ADDR"

func Proxy(w base.Environment) *cobra.Command {
	var at base.TargetFlags
	var listen, path string
	var remote, anyUser bool
	s := base.ToChange
	s.Tasks = base.AnyTasks
	cmd := &cobra.Command{
		Use:        "proxy [flags] [ALLOC] [TASK]",
		SuggestFor: []string{"port-forward", "forward", "serve"},
		Short:      "Serve an allocation's API on a TCP port, for clients that can't speak unix://",
		Long: `Passes requests from a TCP port on to an API socket: that of TASK or, without TASK, the operator's.

Inside a task, without ALLOC, it is the task's own socket ($` + unixAddr + `). The proxy runs until it is
interrupted, also while taskapi is replaced.

The proxy adds no credentials: each request needs a token that is good on that socket. The API sees the user of this
command, not the client's. Only processes of root and of this user get an answer (with sudo, also of the user who called
it): others could use up this user's failed look-ups with bad tokens. --any-user serves every user of this machine.

Only this machine can connect to a loopback address, where a request must name an IP address or localhost. --remote
allows other machines; they send their tokens in the clear.

` + base.TaskArgs,
		Example: `  taskapi proxy --listen 127.0.0.1:4646
  taskapi proxy --listen 127.0.0.1:4646 hello greeter`,
		RunE: func(cmd *cobra.Command, args []string) error {
			address, err := httpserve.ParseAddress(listen)
			if err != nil {
				return base.Usagef("--listen %w", err)
			}
			if !address.Local() && !remote {
				return base.Usagef("--listen %s: other machines may reach this address: give 127.0.0.1 or ::1, "+
					"or --remote to let them send tokens in the clear", address)
			}
			if path == "" && !at.Given(args) && at.DataDir == "" {
				if u, err := url.Parse(w.Getenv(unixAddr)); err == nil && u.Scheme == "unix" {
					path = u.Path
				}
			}
			if path != "" && (at.Given(args) || !filepath.IsAbs(path)) {
				return base.Usagef("--socket takes an absolute path, in place of ALLOC and TASK")
			}
			if path == "" {
				found, err := at.Find(cmd.Context(), args)
				if err != nil {
					return err
				}
				path = found.Layout.OperatorSocket(found.ID)
				if found.Task != "" {
					path = found.Layout.TaskSocket(found.ID, found.Task)
				}
			}
			address.Private = !anyUser
			listener, err := httpserve.Listen(address, proxy.MaxConns)
			if err != nil {
				return base.Usagef("--listen %w", err)
			}
			ctx, release := base.UntilSignal(cmd.Context())
			defer release()
			_, err = fmt.Fprintf(w.Stdout, "passing requests at %s on to %s; each needs a token\n", listener.URL(), path)
			if err != nil {
				return errors.Join(err, listener.Close())
			}
			c := proxy.Config{Listener: listener, Socket: path, Logger: base.NewLogger(false, w)}
			if c.Local = address.Socket == "" && address.Local(); c.Local && !anyUser {
				c.Users = w.Users()
			}
			return proxy.Serve(ctx, c)
		},
	}
	at.Add(cmd, w, s)
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:4646",
		"`ADDRESS:PORT` to listen on, or unix:///PATH; port 0 takes any")
	cmd.Flags().StringVar(&path, "socket", "", "absolute `PATH` of the API socket, in place of ALLOC and TASK")
	cmd.Flags().BoolVar(&anyUser, "any-user", false, "serve the processes of every user of this machine")
	cmd.Flags().BoolVar(&remote, "remote", false, "allow an address that other machines can reach")
	return cmd
}
