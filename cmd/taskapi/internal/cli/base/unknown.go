package base

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/agext/levenshtein"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// wanted describes a flag's value, by its type's name.
var wanted = map[string]string{
	"bool":     "true or false",
	"duration": "a duration, such as 90s, 30m or 24h",
}

// FlagError returns an error of a flag in the words of this program.
func FlagError(cmd *cobra.Command, err error) error {
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if what, ok := wanted[bad.GetFlag().Value.Type()]; ok {
			err = fmt.Errorf("--%s %q must be %s", bad.GetFlag().Name, bad.GetValue(), what)
		}
	}
	return Usage(fmt.Errorf("%w; see '%s --help'", err, cmd.CommandPath()))
}

// destructive annotates a command that ends or removes something: it is never suggested for a mistyped one.
const destructive = "destructive"

// runsAnother annotates a command that runs another one: what follows its own flags and arguments is that one's.
const runsAnother = "runs another"

// SetRunsAnother annotates a command.
func SetRunsAnother(cmd *cobra.Command) {
	cmd.Annotations = map[string]string{runsAnother: "true"}
	cmd.Flags().SetInterspersed(false)
}

// RunsAnother reports whether a command runs another one.
func RunsAnother(cmd *cobra.Command) bool { return cmd.Annotations[runsAnother] != "" }

// IsDestructive annotates a command.
func IsDestructive(cmd *cobra.Command) *cobra.Command {
	cmd.Annotations = map[string]string{destructive: "true"}
	return cmd
}

// UnknownCommand returns the error for a name that is no command below cmd.
func UnknownCommand(cmd *cobra.Command, name string) error {
	if near := nearest(cmd.Commands(), name); near != nil && near.Annotations[destructive] == "" {
		return fmt.Errorf("unknown command %q; did you mean %q?", name, near.Name())
	}
	return fmt.Errorf("unknown command %q; see '%s --help'", name, cmd.CommandPath())
}

// maxSlips is how many letters a mistyped name may differ in: two slips of the finger.
const maxSlips = 2

// nearest returns the command that a mistyped name is most like, nil for none. Of several that are as near, it is one that ends and removes
// nothing.
func nearest(commands []*cobra.Command, name string) (found *cobra.Command) {
	least := min(maxSlips+1, utf8.RuneCountInString(name))
	for _, cmd := range commands {
		if cmd.Hidden {
			continue
		}
		if slices.Contains(cmd.SuggestFor, name) {
			return cmd
		}
		slips := levenshtein.Distance(strings.ToLower(name), cmd.Name(), nil)
		if slips < least || slips == least && found != nil && found.Annotations[destructive] != "" {
			least, found = slips, cmd
		}
	}
	return found
}
