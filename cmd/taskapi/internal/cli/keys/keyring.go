package keys

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/identity"
)

// Keyring is the tree of taskapi keyring, after Nomad's operator root keyring.
func Keyring(w base.Environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keyring",
		Short: "List, rotate, remove, export and serve the keys that sign identities",
		Long: `The keys that sign identities. A running allocation follows a change immediately: after a rotation new tokens are
signed with the new key, and old ones are good until they expire; tokens of a removed key are refused from then on.`,
		Example: `  taskapi keyring list
  taskapi keyring rotate`,
	}
	cmd.AddCommand(keyringList(w), keyringRotate(w), base.IsDestructive(keyringRemove(w)), keyringExport(w), keyringServe(w))
	return cmd
}

func keyringList(w base.Environment) *cobra.Command {
	var flags base.KeyFlags
	var out base.OutputFlags
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the keys, the active one first",
		Example: `  taskapi keyring list`,
		RunE: func(*cobra.Command, []string) error {
			ring, err := flags.Open(w)
			if err != nil {
				return err
			}
			lines := []keyLine{}
			for _, k := range ring.List() {
				lines = append(lines, keyLine{k.ID, k.State, k.CreatedAt.UnixNano()})
			}
			return out.Print(w, lines, nil, func() error { return printKeys(w, ring.List()) })
		},
	}
	flags.Add(cmd)
	base.AddOutput(cmd, &out)
	return cmd
}

// keyLine is a key as keyring list --json prints it, with the names of Nomad's API.
type keyLine struct {
	KeyID      string
	State      identity.KeyState
	CreateTime int64 // nanoseconds since the Unix epoch
}

func printKeys(w base.Environment, keys []identity.KeyInfo) error {
	table := output.Table{Colors: w.Colors()}
	table.Header("Key", "State", "Created")
	for _, k := range keys {
		table.Row(k.ID, string(k.State), output.Date(k.CreatedAt))
	}
	_, err := table.WriteTo(w.Stdout)
	return err
}

func keyringRotate(w base.Environment) *cobra.Command {
	var flags base.KeyFlags
	cmd := &cobra.Command{
		Use:     "rotate",
		Short:   "Make a new key and sign with it from now on",
		Example: `  taskapi keyring rotate`,
		RunE: func(*cobra.Command, []string) error {
			l, ring, err := flags.OpenIn(w)
			if err != nil {
				return err
			}
			var key identity.KeyInfo
			err = l.Audited(w, "keyring rotate", func() (string, error) {
				key, err = ring.Rotate()
				return ": " + key.ID, err
			})
			if err != nil {
				return err
			}
			return w.Printf("%s is active; tokens of older keys are good until they expire\n", key.ID)
		},
	}
	flags.Add(cmd)
	return cmd
}

func keyringRemove(w base.Environment) *cobra.Command {
	var flags base.KeyFlags
	cmd := &cobra.Command{
		Use:     "remove [flags] KEY",
		Short:   "Remove an inactive key: its tokens are refused from then on",
		Example: `  taskapi keyring remove 9d3b6c1e-7e1f-4e0c-8a39-0f1f6f3f5a11`,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			ring, err := flags.Open(w)
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
			l, ring, err := flags.OpenIn(w)
			if err != nil {
				return err
			}
			id := strings.ToLower(args[0])
			err = l.Audited(w, "keyring remove: "+id, func() (string, error) { return "", ring.Remove(id) })
			if errors.Is(err, identity.ErrKeyNotFound) || errors.Is(err, identity.ErrKeyActive) {
				return base.Usage(fmt.Errorf("%w; 'taskapi keyring list' shows the keys", err))
			}
			if err != nil {
				return err
			}
			return w.Printf("%s is removed; its tokens are refused\n", args[0])
		},
	}
	flags.Add(cmd)
	return cmd
}

func keyringExport(w base.Environment) *cobra.Command {
	var flags base.KeyFlags
	var openID string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Print the public keys as a JWK set, for others to trust",
		Long: `Prints the public keys as a JWK set (RFC 7517): the document that /.well-known/jwks.json answers. With --openid it prints
the OpenID configuration of the issuer instead. Redirect it to a file that others read, or that a web server serves.`,
		Example: `  taskapi keyring export`,
		RunE: func(*cobra.Command, []string) error {
			if err := agent.CheckIssuer("--openid", openID); err != nil {
				return err
			}
			ring, err := flags.Open(w)
			if err != nil {
				return err
			}
			document := ring.JWKS()
			if openID != "" {
				document = agent.OpenIDConfiguration(openID)
			}
			return w.Printf("%s\n", document)
		},
	}
	flags.Add(cmd)
	cmd.Flags().StringVar(&openID, "openid", "", "print the OpenID configuration of this issuer, a URL")
	return cmd
}
