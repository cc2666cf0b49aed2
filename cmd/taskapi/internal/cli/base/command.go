package base

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/agext/levenshtein"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// CheckArgs accepts the arguments that the Use line of a command names: NAME, [NAME] for one that may be left out, or
// at the end [NAME...] for any number.
func CheckArgs(cmd *cobra.Command, args []string) error {
	var all, required, given []string
	for _, word := range strings.Fields(cmd.Use)[1:] {
		name := strings.Trim(word, "[]")
		if name == "flags" {
			continue
		}
		if name == "ALLOC" && cmd.Flags().Changed("alloc") {
			word = "[ALLOC]"
		}
		all = append(all, word)
		if name == word {
			required = append(required, name)
		}
	}
	if last := len(all) - 1; last >= 0 && strings.HasSuffix(all[last], "...]") {
		for all[last] = strings.TrimSuffix(all[last], "...]") + "]"; len(all) < len(args); {
			all = append(all, all[last])
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
		return Usagef("unexpected argument %q: '%s' takes none", args[0], cmd.CommandPath())
	case len(args) < len(required):
		return Usagef("%s is missing: %s", required[len(args)], cmd.UseLine())
	case len(args) > len(all):
		return Usagef("want one %s, not %d: unexpected %q", strings.Join(all, " and one "), len(args), args[len(all)])
	case i >= 0 && slices.Contains(required, given[i]):
		return Usagef("%s is empty", given[i])
	case i >= 0:
		return Usagef("%s is empty: give a name, or leave it out", given[i])
	}
	return nil
}

// Complete adds CheckArgs to every command below cmd that does not check its arguments. A command without a function of
// its own prints its help, and refuses an unknown subcommand.
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
		return Usage(UnknownCommand(cmd, args...))
	}
	return cmd.Help()
}

// wanted describes a flag's value, by its type's name.
var wanted = map[string]string{
	"bool":     "true or false",
	"int":      "a whole number, such as 2",
	"duration": "a duration, such as 90s, 30m or 24h",
}

// now has the settings that others may look for among the flags.
var now = map[string]string{
	"host-ip": "host_ip", "allow-shared-user": "allow_shared_user", "issuer": "identity.issuer",
	"identity-ttl": "identity.ttl", "audience": "identity.audience", "jwks": "identity.jwks", "limits": "limits.NAME",
	"audit-log": "audit.path", "audit-required": "audit.required", "metrics-listen": "telemetry.listen",
	"services": "consul.enabled", "seal-key": "keyring.seal_key", "consul-address": "consul.address",
	"consul-token-file": "consul.token_file", "consul-namespace": "consul.namespace",
	"consul-partition": "consul.partition", "consul-ca-file": "consul.ca_file", "consul-cert-file": "consul.cert_file",
	"consul-key-file": "consul.key_file",
}

// FlagError returns an error of a flag in the words of this program. After an unknown command, the error is about the
// command.
func FlagError(cmd *cobra.Command, err error) error {
	if before := cmd.Flags().Args(); len(before) > 0 && cmd.HasSubCommands() {
		return Usage(UnknownCommand(cmd, before...))
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name := unknown.GetSpecifiedName()
		if hint := flagHint(cmd, name); hint != "" {
			return Usagef("%w; %s", err, hint)
		}
		if near := nearestFlag(cmd.Flags(), name); near != "" {
			return Usagef("%w; did you mean --%s?", err, near)
		}
		if setting := now[name]; setting != "" && cmd.Flags().Lookup("option") != nil {
			return Usagef("there is no --%s: it is the setting %s; give -o %[2]s=VALUE, or put it into the settings file", name,
				setting)
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

// UnknownCommand returns the error for the first of the arguments, which is no command below cmd, with a hint for a
// word of docker, kubectl or nomad, alone or with the next one, or for a name that is nearly a command's. A command
// that ends or removes something is never the hint for a mistyped name.
func UnknownCommand(cmd *cobra.Command, args ...string) error {
	name := args[0]
	for n := min(len(args), 2); n > 0; n-- {
		if hint := hintFor(append(words(cmd), args[:n]...)...); hint != "" {
			return fmt.Errorf("unknown command %q; %s", strings.Join(args[:n], " "), hint)
		}
	}
	if near := nearest(cmd.Commands(), name); near != nil && near.Annotations[destructive] == "" {
		return fmt.Errorf("unknown command %q; did you mean %q?", name, near.Name())
	}
	return fmt.Errorf("unknown command %q; see '%s --help'", name, cmd.CommandPath())
}

// maxSlips is how many letters a mistyped name may differ in: two slips of the finger.
const maxSlips = 2

// nearestFlag returns the name of the flag that is most similar to a mistyped one; empty for none.
func nearestFlag(flags *pflag.FlagSet, name string) (found string) {
	least := min(maxSlips+1, utf8.RuneCountInString(name)-1)
	flags.VisitAll(func(f *pflag.Flag) {
		if d := levenshtein.Distance(strings.ToLower(name), f.Name, nil); !f.Hidden && d < least {
			least, found = d, f.Name
		}
	})
	return found
}

// nearest returns the command whose name is most similar to a mistyped one, nil for none. Among equally similar ones it
// prefers a command that ends and removes nothing, and then one of the same length: letters change places often.
func nearest(commands []*cobra.Command, name string) (found *cobra.Command) {
	least := 4 * min(maxSlips+1, utf8.RuneCountInString(name))
	for _, cmd := range commands {
		if cmd.Hidden {
			continue
		}
		score := 4 * levenshtein.Distance(strings.ToLower(name), cmd.Name(), nil)
		if cmd.Annotations[destructive] != "" {
			score += 2
		}
		if len(cmd.Name()) != len(name) {
			score++
		}
		if score < least {
			least, found = score, cmd
		}
	}
	return found
}
