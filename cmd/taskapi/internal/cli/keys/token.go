// Package keys has the commands about identities: token makes, explains and revokes tokens, keyring manages the keys
// that sign them.
package keys

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/auth"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/identity/opaque"
)

// Token is the tree of taskapi token.
func Token(w base.Environment) *cobra.Command {
	cmd := &cobra.Command{
		Use:        "token",
		SuggestFor: []string{"login", "auth", "identity", "policy"},
		Short:      "Make, explain and revoke tokens, good ones and bad ones",
		Long: `Makes tokens of tasks, good ones and bad ones of every kind, explains tokens and revokes them.

You need to be able to read the key ring and to write to the data directory. Nobody can do this over the API.`,
		Example: `  taskapi token mint --task server
  taskapi token explain token.jwt`,
	}
	cmd.AddCommand(tokenMint(w), tokenExplain(w), base.IsDestructive(tokenRevoke(w)))
	return cmd
}

// maxTokenInput is longer than any valid token.
const maxTokenInput = 64 << 10

// readToken reads the token that an argument names: a file, or "-" or nothing for standard input. A token as the
// argument itself is accepted, with a warning.
func readToken(w base.Environment, args []string) (string, error) {
	name := "-"
	if len(args) > 0 {
		name = args[0]
	}
	if strings.Count(name, ".") == 2 && strings.HasPrefix(name, "ey") {
		if _, err := os.Lstat(name); err != nil {
			fmt.Fprintln(w.Stderr, "taskapi: warning: every user of this machine can read a token on a command line: give a "+
				"file, or standard input")
			return name, nil //nolint:nilerr // an argument that is no file is a token
		}
	}
	token, err := base.ReadInput(name, w.Stdin, maxTokenInput)
	if err != nil {
		return "", base.Usagef("%w: give a file that holds one token, or '-' for standard input", err)
	}
	token = bytes.TrimSuffix(bytes.TrimSuffix(token, []byte("\n")), []byte("\r")) // as an editor or echo leave it
	if len(token) == 0 {
		return "", base.Usagef("there is no token: give a file that holds one, or pipe it to standard input")
	}
	return string(token), nil
}

// standsFor returns the token for which an operator's secret stands. Any other text it returns as it is.
func standsFor(l base.Layout, token string) (string, error) {
	if !opaque.Is(token) {
		return token, nil
	}
	ids, err := l.IDs()
	if err != nil {
		return "", err
	}
	for _, id := range ids {
		if found, err := opaque.Token(l.OperatorSecrets(id), token); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return found, err
		}
	}
	return "", fmt.Errorf("no allocation in %s knows this secret: is --data-dir right?", l.Dir)
}

// authenticatorOf returns the authenticator for tokens of an allocation of the data directory, as far as this user can
// read its files. An invalid ID belongs to no allocation.
func authenticatorOf(l base.Layout, id string) (agent.OfflineAuthenticator, error) {
	d := agent.OfflineAuthenticator{Settings: agent.DefaultSettings(), AllocationID: id}
	if !datadir.IsID(id) { // it becomes a part of a path
		return d, nil
	}
	dump, err := state.Inspect(l.State(id))
	if errors.Is(err, state.ErrNotFound) {
		return d, nil
	}
	if err != nil {
		return d, l.ErrUnreadable(id, err)
	}
	if d.Settings, err = l.Remembered(id); err != nil {
		return d, err
	}
	saved := dump.Saved
	if alloc := saved.Alloc; alloc != nil && alloc.Job != nil && alloc.Job.Region != nil {
		d.Allocation = &auth.Allocation{Region: *alloc.Job.Region, Namespace: alloc.Namespace,
			JobID: interfaces.IdentityJobID(alloc), TaskGroup: alloc.TaskGroup, Life: saved.Life}
		d.Ended = saved.Terminal
	}
	return d, nil
}
