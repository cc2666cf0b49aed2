package keys

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
)

func keyringServe(w base.Environment) *cobra.Command {
	var flags base.KeyFlags
	var listen, issuer string
	var remote bool
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Serve the public keys over HTTP, for verifiers that take an OIDC issuer's URL",
		Long: `Serves the public keys as a JWK set at /.well-known/jwks.json, and the OpenID configuration of their issuer at
/.well-known/openid-configuration, without a token, until it is interrupted. Nothing else answers there. It follows rotations and removals of keys.

A verifier expects tokens whose iss is the issuer's URL: run the allocation with --issuer and that URL, so give --listen a port. Only this
machine can connect to a loopback address; --remote allows others. A request must name an address, localhost or the issuer's host.`,
		Example: `  taskapi keyring serve --listen 127.0.0.1:9180`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := base.NewLayout(flags.DataDir, w)
			if err != nil {
				return err
			}
			ring, err := l.OpenKeyring(flags.SealKey)
			if err != nil {
				return err
			}
			ctx, release := base.UntilSignal(cmd.Context())
			defer release()
			server, err := agent.ListenKeys(agent.KeyServerConfig{Keyring: ring, Listen: listen, Issuer: issuer, Remote: remote, Logger: base.NewLogger(false, w)})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(w.Stdout, "serving the public keys at %s; issuer %s\n", server.URL(), cmp.Or(server.Issuer(), "none"))
			if err != nil {
				return errors.Join(err, server.Close())
			}
			return server.Serve(ctx)
		},
	}
	flags.Add(cmd)
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:9180",
		"`ADDRESS:PORT` to listen on, or unix:///PATH; port 0 takes any")
	cmd.Flags().StringVar(&issuer, "issuer", "", "issuer that the OpenID configuration names, a URL below which others find it (default what is served)")
	cmd.Flags().BoolVar(&remote, "remote", false, "allow an address that other machines can reach")
	return cmd
}
