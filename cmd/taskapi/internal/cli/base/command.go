package base

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/agext/levenshtein"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// CheckArgs accepts the arguments that the Use line of a command names: NAME, [NAME] for one that may be left out, or
// at the end [NAME...] for any number.
func CheckArgs(cmd *cobra.Command, args []string) error {
	var required []string
	most := 0
	for _, word := range strings.Fields(cmd.Use)[1:] {
		switch most++; {
		case word == "[flags]":
			most--
		case strings.HasSuffix(word, "...]"):
			most = max(most, len(args))
		case word[0] != '[' && (word != "ALLOC" || !cmd.Flags().Changed("alloc")):
			required = append(required, word)
		}
	}
	switch i := slices.Index(args, ""); {
	case len(args) < len(required):
		return Usagef("%s is missing: %s", required[len(args)], cmd.UseLine())
	case len(args) > most:
		return Usagef("unexpected argument %q: %s", args[most], cmd.UseLine())
	case i >= 0:
		return Usagef("argument %d is empty: %s", i+1, cmd.UseLine())
	}
	return nil
}

// Complete adds CheckArgs to every command below cmd that does not check its arguments. A command of others alone
// prints its help, and refuses an unknown subcommand.
func Complete(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		sub.Flags().SortFlags = false
		switch {
		case sub.Args != nil:
		case sub.HasSubCommands():
			sub.Args, sub.RunE = cobra.ArbitraryArgs, HelpOrUnknown
		default:
			sub.Args = CheckArgs
		}
		Complete(sub)
	}
}

// HelpOrUnknown prints a command's help, and refuses arguments: the first names no subcommand.
func HelpOrUnknown(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return UnknownCommand(cmd, args[0])
	}
	return cmd.Help()
}

// wanted describes a flag's value, by its type's name.
var wanted = map[string]string{
	"bool":     "true or false",
	"int":      "a whole number, such as 2",
	"duration": "a duration, such as 90s, 30m or 24h",
}

// otherWords are names that other tools have for flags.
var otherWords = map[string]string{
	"o": "json", "out": "json", "output": "json", "format": "template", "c": "task", "container": "task", "job": "alloc",
	"w": "follow", "watch": "follow", "timestamps": "time", "port": "listen",
}

// FlagError returns an error of a flag in the words of this program. After an unknown command, the error is about the
// command.
func FlagError(cmd *cobra.Command, err error) error {
	if before := cmd.Flags().Args(); len(before) > 0 && cmd.HasSubCommands() {
		return UnknownCommand(cmd, before[0])
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		if f := cmd.Flags().Lookup(nearestFlag(cmd.Flags(), unknown.GetSpecifiedName())); f != nil {
			return Usagef("%w; did you mean --%s?", err, f.Name)
		}
	}
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if what, ok := wanted[bad.GetFlag().Value.Type()]; ok {
			err = fmt.Errorf("--%s %q must be %s", bad.GetFlag().Name, bad.GetValue(), what)
		}
	}
	return Usagef("%w; see '%s --help'", err, cmd.CommandPath())
}

// destructive annotates a command that ends or removes something: it is never suggested for a mistyped name.
const destructive = "destructive"

// runsAnother annotates a command that runs another one. The words after its own flags and arguments belong to the
// other command.
const runsAnother = "runs another"

// SetRunsAnother annotates a command, and gives its own errors the exit code ExitOwn.
func SetRunsAnother(cmd *cobra.Command) *cobra.Command {
	cmd.Annotations = map[string]string{runsAnother: "true"}
	cmd.Flags().SetInterspersed(false)
	return ExitsAsAnother(cmd)
}

// ExitsAsAnother gives the own errors of a command that runs another one the exit code ExitOwn.
func ExitsAsAnother(cmd *cobra.Command) *cobra.Command {
	args, run := cmd.Args, cmd.RunE
	cmd.Args = func(cmd *cobra.Command, given []string) error { return Own(args(cmd, given)) }
	cmd.RunE = func(cmd *cobra.Command, given []string) error { return Own(run(cmd, given)) }
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return Own(FlagError(cmd, err)) })
	return cmd
}

// RunsAnother reports whether a command runs another one.
func RunsAnother(cmd *cobra.Command) bool { return cmd.Annotations[runsAnother] != "" }

// OutlivesReaders keeps a command running when a pipe of its standard output or error has lost its reader, or when a
// file has reached the limit of its size. Without this, the next write ends the process by a signal; with it, the write
// fails. The signals are caught, not ignored, because the programs that a process starts inherit ignored signals.
func OutlivesReaders(cmd *cobra.Command) *cobra.Command {
	before := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE, syscall.SIGXFSZ) // nobody receives from it
		if before == nil {
			return nil
		}
		return before(cmd, args)
	}
	return cmd
}

// IsDestructive annotates a command.
func IsDestructive(cmd *cobra.Command) *cobra.Command {
	cmd.Annotations = map[string]string{destructive: "true"}
	return cmd
}

// UnknownCommand returns the error for a name that no command below cmd has: a name that is nearly a command's, or a
// word of other tools (SuggestFor). A command that ends or removes something is never offered for a mistyped name.
func UnknownCommand(cmd *cobra.Command, name string) error {
	var near []string
	for _, sub := range cmd.Commands() {
		switch {
		case slices.Contains(sub.SuggestFor, name):
			return Usagef("unknown command %q; see '%s --help'", name, sub.CommandPath())
		case sub.IsAvailableCommand() && sub.Annotations[destructive] == "" && isNear(name, sub.Name()):
			near = append(near, sub.Name())
		}
	}
	if near != nil {
		return Usagef("unknown command %q; did you mean %s?", name, strings.Join(near, " or "))
	}
	return Usagef("unknown command %q; see '%s --help'", name, cmd.CommandPath())
}

// isNear reports whether a mistyped name differs from another in at most two letters, and not in all.
func isNear(mistyped, name string) bool {
	d := levenshtein.Distance(strings.ToLower(mistyped), name, nil)
	return d <= 2 && d < min(len(mistyped), len(name))
}

// nearestFlag returns the name of a flag like a mistyped one or a word of other tools; empty for none.
func nearestFlag(flags *pflag.FlagSet, name string) (found string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && isNear(name, f.Name) {
			found = f.Name
		}
	})
	return cmp.Or(found, otherWords[name])
}
