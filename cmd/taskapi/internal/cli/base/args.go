package base

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// CheckArgs accepts the arguments that the Use line of a command names: NAME, or [NAME] for one that may be left out.
func CheckArgs(cmd *cobra.Command, args []string) error {
	var all, required, given []string
	for _, word := range strings.Fields(cmd.Use)[1:] {
		name := strings.Trim(word, "[]")
		if name == "flags" {
			continue
		}
		all = append(all, word)
		if name == word {
			required = append(required, name)
		}
	}
	optional := len(args) - len(required)
	for i, word := range all {
		all[i] = strings.TrimSuffix(strings.Trim(word, "[]"), "|-")
		if all[i] != word {
			if optional--; optional < 0 {
				continue
			}
		}
		given = append(given, all[i])
	}
	switch i := slices.Index(args, ""); {
	case len(args) > 0 && len(all) == 0:
		return Usage(fmt.Errorf("unexpected argument %q: '%s' takes none", args[0], cmd.CommandPath()))
	case len(args) < len(required):
		return Usage(fmt.Errorf("%s is missing: %s", required[len(args)], cmd.UseLine()))
	case len(args) > len(all):
		return Usage(fmt.Errorf("want one %s, not %d: unexpected %q", strings.Join(all, " and one "), len(args), args[len(all)]))
	case i >= 0 && slices.Contains(required, given[i]):
		return Usage(fmt.Errorf("%s is empty", given[i]))
	case i >= 0:
		return Usage(fmt.Errorf("%s is empty: give a name, or leave it out", given[i]))
	}
	return nil
}

// Complete gives every command below cmd that checks no arguments CheckArgs. A command without a function of its own prints its help, and
// refuses what is none of its subcommands.
func Complete(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		switch {
		case sub.Args != nil:
		case sub.Runnable():
			sub.Args = CheckArgs
		default:
			sub.Args, sub.RunE = cobra.ArbitraryArgs, HelpOrUnknown
		}
		Complete(sub)
	}
}

// HelpOrUnknown prints a command's help, and refuses arguments: the first names no subcommand.
func HelpOrUnknown(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return Usage(UnknownCommand(cmd, args[0]))
	}
	return cmd.Help()
}
