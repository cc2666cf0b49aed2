package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"taskapi/allocrunner/state"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/identity"
)

// keyFlags say where the key ring is.
type keyFlags struct {
	dataDir string
	sealKey string
}

const sealKeyUsage = "file with the key that the key ring is sealed with (default seal.key in the key ring)"

func (f *keyFlags) add(cmd *cobra.Command) {
	addDataDir(cmd, &f.dataDir)
	cmd.Flags().StringVar(&f.sealKey, "seal-key", "", sealKeyUsage)
}

// openKeyring opens the data directory's key ring, and makes one when there is none and no allocation has tokens signed with an earlier one.
func (l layout) openKeyring(sealKey string) (*identity.Keyring, error) {
	return identity.OpenKeyring(identity.KeyringConfig{Dir: l.Keyring(), SealKeyFile: sealKey, CheckCreate: l.noTokens})
}

// noTokens returns an error when an allocation of the data directory has tokens: with another key ring they would be refused silently.
func (l layout) noTokens() error {
	entries, err := os.ReadDir(l.Allocs())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return agent.UnwrapPath(err)
	}
	for _, e := range entries {
		id := e.Name()
		dump, err := state.Inspect(l.State(id))
		if errors.Is(err, state.ErrNotFound) || errors.Is(err, syscall.ENOTDIR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("allocation %s may have tokens signed with its keys: %w: restore the key ring from a backup", id, err)
		}
		if saved := dump.Saved; saved.Alloc != nil && !saved.Terminal {
			return fmt.Errorf("allocation %s has not ended, and its tokens are signed with its keys: restore the key ring from a backup, or run '%s'",
				id, l.Command("stop", id))
		}
	}
	return nil
}

// open opens the ring of the data directory that the flags name.
func (f *keyFlags) open(w Environment) (*identity.Keyring, error) {
	_, ring, err := f.openIn(w)
	return ring, err
}

// openIn is open, and also returns the data directory.
func (f *keyFlags) openIn(w Environment) (layout, *identity.Keyring, error) {
	l, err := newLayout(f.dataDir, w)
	if err != nil {
		return l, nil, err
	}
	if _, err := os.Stat(l.Keyring()); errors.Is(err, fs.ErrNotExist) {
		return l, nil, usage(fmt.Errorf("no key ring in %s: 'taskapi run' makes one; is --data-dir right?", string(l.Dir)))
	}
	ring, err := l.openKeyring(f.sealKey)
	return l, ring, err
}

// keyringCommand is the tree of taskapi keyring, after Nomad's operator root keyring.
func keyringCommand(w Environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keyring",
		Short: "List, rotate, remove, export and serve the keys that sign identities",
		Long: `The keys that sign identities. A running allocation follows a change immediately: after a rotation new tokens are
signed with the new key, and old ones are good until they expire; tokens of a removed key are refused from then on.`,
		Example: `  taskapi keyring list
  taskapi keyring rotate`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(unknownCommand(cmd, args[0]))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(keyringList(w), keyringRotate(w), isDestructive(keyringRemove(w)), keyringExport(w), keyringServe(w))
	return cmd
}

func keyringList(w Environment) *cobra.Command {
	var flags keyFlags
	var out outputFlags
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the keys, the active one first",
		Example: `  taskapi keyring list`,
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			ring, err := flags.open(w)
			if err != nil {
				return err
			}
			lines := []keyLine{}
			for _, k := range ring.List() {
				lines = append(lines, keyLine{k.ID, k.State, k.CreatedAt.UnixNano()})
			}
			return out.print(w, lines, nil, func() error { return printKeys(w, ring.List()) })
		},
	}
	flags.add(cmd)
	addOutput(cmd, &out)
	return cmd
}

// keyLine is a key as keyring list --json prints it, with the names of Nomad's API.
type keyLine struct {
	KeyID      string
	State      identity.KeyState
	CreateTime int64 // nanoseconds since the Unix epoch
}

func printKeys(w Environment, keys []identity.KeyInfo) error {
	table := output.Table{Colors: w.colors()}
	table.Header("Key", "State", "Created")
	for _, k := range keys {
		table.Row(k.ID, string(k.State), output.Date(k.CreatedAt))
	}
	_, err := table.WriteTo(w.Stdout)
	return err
}

func keyringRotate(w Environment) *cobra.Command {
	var flags keyFlags
	cmd := &cobra.Command{
		Use:     "rotate",
		Short:   "Make a new key and sign with it from now on",
		Example: `  taskapi keyring rotate`,
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			l, ring, err := flags.openIn(w)
			if err != nil {
				return err
			}
			var key identity.KeyInfo
			err = l.audited(w, "keyring rotate", func() (string, error) {
				key, err = ring.Rotate()
				return ": " + key.ID, err
			})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(w.Stdout, "%s is active; tokens of older keys are good until they expire\n", key.ID)
			return err
		},
	}
	flags.add(cmd)
	return cmd
}

func keyringRemove(w Environment) *cobra.Command {
	var flags keyFlags
	cmd := &cobra.Command{
		Use:     "remove [flags] KEY",
		Short:   "Remove an inactive key: its tokens are refused from then on",
		Example: `  taskapi keyring remove 9d3b6c1e-7e1f-4e0c-8a39-0f1f6f3f5a11`,
		Args:    oneArg("KEY"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			ring, err := flags.open(w)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var ids []string
			for _, k := range ring.List() {
				if k.State == identity.KeyInactive {
					ids = append(ids, k.ID)
				}
			}
			return ids, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			l, ring, err := flags.openIn(w)
			if err != nil {
				return err
			}
			id := strings.ToLower(args[0])
			err = l.audited(w, "keyring remove: "+id, func() (string, error) { return "", ring.Remove(id) })
			if errors.Is(err, identity.ErrKeyNotFound) || errors.Is(err, identity.ErrKeyActive) {
				return usage(fmt.Errorf("%w; 'taskapi keyring list' shows the keys", err))
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(w.Stdout, "%s is removed; its tokens are refused\n", args[0])
			return err
		},
	}
	flags.add(cmd)
	return cmd
}

func keyringExport(w Environment) *cobra.Command {
	var flags keyFlags
	var openID string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Print the public keys as a JWK set, for others to trust",
		Long: `Prints the public keys as a JWK set (RFC 7517): the document that /.well-known/jwks.json answers. With --openid it prints
the OpenID configuration of the issuer instead. Redirect it to a file that others read, or that a web server serves.`,
		Example: `  taskapi keyring export`,
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := agent.CheckIssuer("--openid", openID); err != nil {
				return err
			}
			ring, err := flags.open(w)
			if err != nil {
				return err
			}
			document := ring.JWKS()
			if openID != "" {
				document = agent.OpenIDConfiguration(openID)
			}
			_, err = fmt.Fprintf(w.Stdout, "%s\n", document)
			return err
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&openID, "openid", "", "print the OpenID configuration of this issuer, a URL")
	return cmd
}
