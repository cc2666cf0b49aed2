package keys

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/cmd/taskapi/internal/tokensync"
	"taskapi/identity"
)

// Keyring is the tree of taskapi keyring, after Nomad's operator root keyring.
func Keyring(w base.Environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:        "keyring",
		SuggestFor: []string{"keys", "root"},
		Short:      "List, rotate, remove, export and serve the keys that sign identities",
		Long: `Lists, rotates, removes, exports and serves the keys that sign identities.

A running allocation follows a change immediately. After a rotation, new tokens are signed with the new key, and old
ones are good until they expire. Tokens of a removed key are refused from then on.`,
		Example: `  taskapi keyring list
  taskapi keyring rotate`,
	}
	cmd.AddCommand(keyringList(w), keyringRotate(w), base.IsDestructive(keyringRemove(w)), keyringExport(w),
		keyringServe(w))
	return cmd
}

// onRing completes a command that does something with the key ring.
func onRing(w base.Environment, cmd *cobra.Command, do func(l base.Layout, ring *identity.Keyring,
	args []string) error) *cobra.Command {
	var flags base.KeyFlags
	flags.Add(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		l, ring, err := flags.Open(w)
		if err != nil {
			return err
		}
		return do(l, ring, args)
	}
	return cmd
}

// keyLine is a key as keyring list --json prints it, with the names of Nomad's API.
type keyLine struct {
	KeyID      string
	State      identity.KeyState
	CreateTime int64 // nanoseconds since the Unix epoch
}

func keyringList(w base.Environment) *cobra.Command {
	var out base.OutputFlags
	cmd := onRing(w, &cobra.Command{
		Use:        "list",
		SuggestFor: []string{"ls"},
		Short:      "List the keys, the active one first",
		Long:       "Lists the keys, the active one first.",
		Example:    `  taskapi keyring list`,
	}, func(_ base.Layout, ring *identity.Keyring, _ []string) error {
		lines, table := []keyLine{}, output.Table{Colors: w.Colors()}
		table.Header("Key", "State", "Created")
		for _, k := range ring.List() {
			lines = append(lines, keyLine{k.ID, k.State, k.CreatedAt.UnixNano()})
			table.Row(k.ID, string(k.State), output.Date(k.CreatedAt))
		}
		return out.Table(w, lines, &table)
	})
	base.AddOutput(cmd, &out)
	return cmd
}

func keyringRotate(w base.Environment) *cobra.Command {
	return onRing(w, &cobra.Command{
		Use:     "rotate",
		Short:   "Make a new key, and sign with it from now on",
		Long:    "Makes a new key, and signs with it from now on. Tokens of old keys are good until they expire.",
		Example: `  taskapi keyring rotate`,
	}, func(l base.Layout, ring *identity.Keyring, _ []string) error {
		var key identity.KeyInfo
		err := l.Audited(w, "keyring rotate", func() (_ string, err error) {
			key, err = ring.Rotate()
			return ": " + key.ID, err
		})
		if err != nil {
			return err
		}
		return w.Printf("%s is active; tokens of older keys are good until they expire\n", key.ID)
	})
}

func keyringRemove(w base.Environment) *cobra.Command {
	return onRing(w, &cobra.Command{
		Use:        "remove [flags] KEY",
		SuggestFor: []string{"delete", "rm"},
		Short:      "Remove an inactive key: its tokens are refused from then on",
		Long:       "Removes an inactive key. Its tokens are refused from then on.",
		Example:    `  taskapi keyring remove 9d3b6c1e-7e1f-4e0c-8a39-0f1f6f3f5a11`,
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) (ids []string, _ cobra.ShellCompDirective) {
			flags := base.KeyFlags{DataDir: cmd.Flag("data-dir").Value.String(), SealKey: cmd.Flag("seal-key").Value.String()}
			if _, ring, err := flags.Open(w); err == nil {
				for _, k := range ring.List() {
					if k.State == identity.KeyInactive {
						ids = append(ids, k.ID)
					}
				}
			}
			return ids, cobra.ShellCompDirectiveNoFileComp
		},
	}, func(l base.Layout, ring *identity.Keyring, args []string) error {
		id := strings.ToLower(args[0])
		err := l.Audited(w, "keyring remove: "+id, func() (string, error) { return "", ring.Remove(id) })
		switch {
		case errors.Is(err, identity.ErrKeyActive):
			return base.Usagef("%w; 'taskapi keyring list' shows the keys", err)
		case errors.Is(err, identity.ErrKeyNotFound):
			return fmt.Errorf("%w; 'taskapi keyring list' shows the keys", err)
		}
		if err != nil {
			return err
		}
		return w.Printf("%s is removed; its tokens are refused\n", args[0])
	})
}

func keyringExport(w base.Environment) *cobra.Command {
	var issuer string
	cmd := onRing(w, &cobra.Command{
		Use:   "export",
		Short: "Print the public keys as a JWK set, for others to trust",
		Long: `Prints the public keys as a JWK set (RFC 7517), as /.well-known/jwks.json answers it.

Redirect it to a file that others read, or that a web server serves. --issuer prints the OpenID configuration of that
issuer instead.`,
		Example: `  taskapi keyring export`,
		PreRunE: func(*cobra.Command, []string) error {
			if err := agent.CheckIssuer(issuer); err != nil {
				return base.Usagef("--issuer %w", err)
			}
			return nil
		},
	}, func(_ base.Layout, ring *identity.Keyring, _ []string) error {
		document := ring.JWKS()
		if issuer != "" {
			document = agent.OpenIDConfiguration(issuer)
		}
		return w.Printf("%s\n", document)
	})
	cmd.Flags().StringVar(&issuer, "issuer", "", "print the OpenID configuration of this issuer, a `URL`")
	return cmd
}

func keyringServe(w base.Environment) *cobra.Command {
	var flags base.KeyFlags
	var listen, issuer string
	var remote bool
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Serve the public keys over HTTP, as an OIDC issuer",
		Long: `Serves the public keys over HTTP, without a token, until it is interrupted.

  /.well-known/jwks.json             the JWK set
  /.well-known/openid-configuration  the OpenID configuration of the issuer

Nothing else answers there. The answers follow rotations and removals of keys.

A verifier expects tokens whose iss is the issuer's URL. So give --listen a port, and run the allocation with -o
identity.issuer=URL. Only this machine can connect to a loopback address; --remote allows others. A request must name
an address, localhost or the issuer's host.`,
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
			config := agent.KeyServerConfig{Keyring: ring, Listen: listen, Issuer: issuer, Remote: remote,
				Logger: base.NewLogger(false, w)}
			store, several := l.OpenShared()
			defer store.Close()
			if several {
				config.All = func(ctx context.Context, own []byte) []byte { return tokensync.AllKeys(ctx, store, own) }
			}
			server, err := agent.ListenKeys(config)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(w.Stdout, "serving the public keys at %s; issuer %s\n", server.URL(),
				cmp.Or(server.Issuer(), "none"))
			if err != nil {
				return errors.Join(err, server.Close())
			}
			return server.Serve(ctx)
		},
	}
	flags.Add(cmd)
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:9180",
		"`ADDRESS:PORT` to listen on, or unix:///PATH; port 0 takes any")
	cmd.Flags().StringVar(&issuer, "issuer", "",
		"`URL` of the issuer in the OpenID configuration, by which others reach this server (default its own)")
	cmd.Flags().BoolVar(&remote, "remote", false, "allow an address that other machines can reach")
	return cmd
}
