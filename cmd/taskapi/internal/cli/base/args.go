package base

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// OneArg accepts one argument. Its error says what that is.
func OneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return Usage(fmt.Errorf("%s is missing: %s", what, cmd.UseLine()))
		case len(args) > 1:
			return Usage(fmt.Errorf("want one %s, not %d: unexpected %q", what, len(args), args[1]))
		}
		return nil
	}
}

// TargetArgs accepts what find does.
func TargetArgs(s Sought) cobra.PositionalArgs {
	names := []string{"ALLOC", "TASK"}
	if s.Tasks == NoTask {
		names = names[:1]
	}
	return func(_ *cobra.Command, args []string) error {
		switch i := slices.Index(args, ""); {
		case len(args) > len(names):
			return Usage(fmt.Errorf("want one %s, not %d: unexpected %q", strings.Join(names, " and one "), len(args), args[len(names)]))
		case i >= 0:
			return Usage(fmt.Errorf("%s is empty: give a name, or leave it out", names[i]))
		}
		return nil
	}
}

// Exactly accepts one argument for each name.
func Exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch i := slices.Index(args, ""); {
		case len(args) < len(names):
			return Usage(fmt.Errorf("%s is missing: %s", names[len(args)], cmd.UseLine()))
		case len(args) > len(names):
			return Usage(fmt.Errorf("unexpected argument %q: %s", args[len(names)], cmd.UseLine()))
		case i >= 0:
			return Usage(fmt.Errorf("%s is empty", names[i]))
		}
		return nil
	}
}

// MaybeOneArg accepts one argument or none.
func MaybeOneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return OneArg(what)(cmd, args)
		}
		return nil
	}
}

// NoArgs accepts no argument.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usage(fmt.Errorf("unexpected argument %q: '%s' takes none", args[0], cmd.CommandPath()))
	}
	return nil
}
