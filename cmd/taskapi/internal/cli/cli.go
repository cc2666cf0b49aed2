// Package cli is the command line of taskapi: its commands with their flags, what they print, and what a reader can do about an error.
// Everything else is done by the packages that it joins: the agent, the client, and the data directory.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/agext/levenshtein"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/linewriter"
)

// Main runs the command that this process's arguments name, as a process of its own, and returns the exit code. version is the program's.
func Main(version string) int {
	w := Environment{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Env: os.Environ(), Version: version}
	if len(os.Args) > 1 && os.Args[1] == "run" {
		w.Signals = catchSignals()
	}
	args, err := handedArgs(os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "taskapi: %v\n", err)
		return ExitUsage
	}
	return Run(context.Background(), args, w)
}

// Environment is all that a command may touch of the process around it.
type Environment struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Env            []string       // KEY=value
	Version        string         // of the program
	Signals        chan os.Signal // of taskapi run, from its first moment; nil for those from now on
}

// getenv returns the value of an environment variable, empty when it is not set.
func (w Environment) getenv(key string) string {
	for i := len(w.Env) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(w.Env[i], key+"="); ok {
			return value
		}
	}
	return ""
}

// The exit codes.
const (
	ExitOK     = 0
	ExitFailed = 1 // the allocation failed, or the command could not do its work
	ExitUsage  = 2 // the job file or a flag is wrong: nothing was started
)

// usageError is a mistake in what the caller gave: the job file, a flag, an argument.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// usage marks err as the caller's mistake; nil stays nil.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

// isUsage reports whether the caller must give something else.
func isUsage(err error) bool {
	_, usage := errors.AsType[usageError](err)
	_, invalid := errors.AsType[agent.InvalidError](err)
	return usage || invalid
}

// silentError ends a command with an exit code when the reason has been printed already.
type silentError struct{ code int }

func (e silentError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

var errSilent error = silentError{ExitFailed}

// Run runs the command that args name and returns the exit code.
func Run(ctx context.Context, args []string, w Environment) int {
	root := newRoot(w)
	args = doubleDashes(args)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	if silent, ok := errors.AsType[silentError](err); ok {
		return silent.code
	}
	if errors.Is(err, agent.ErrReported) {
		return ExitFailed
	}
	code := ExitFailed
	if isUsage(err) {
		code = ExitUsage
	}
	if coded, ok := errors.AsType[codedError](err); ok {
		code = coded.code
	}
	last := queuedLog(w)
	if wantsJSON(cmd, args) {
		_ = json.NewEncoder(last).Encode(errorJSON{err.Error(), code}) // text alone, which can always be encoded
	} else {
		fmt.Fprintf(last, "taskapi: %s\n", linewriter.Printable(err.Error()))
	}
	flushAll(last)
	return code
}

// newRoot returns the tree of commands.
func newRoot(w Environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "taskapi",
		Short: "Run one allocation of a Nomad job file, each task with its own authenticated socket",
		Long: `taskapi runs one allocation of a Nomad job file on this machine, without a cluster, and gives each of
its tasks a Unix socket where Nomad's HTTP API answers to the holder of the task's identity.

Flags may be written in Nomad's style (-var) or GNU's (--var).`,
		Version:       w.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return usage(unknownCommand(cmd, args[0]))
		},
	}
	root.SetIn(w.Stdin)
	root.SetOut(w.Stdout)
	root.SetErr(w.Stderr)
	root.SetVersionTemplate(versionLine(w))
	root.SetFlagErrorFunc(flagError)
	addGroup(root, "Run allocations:",
		runCommand(w),
		attachCommand(w),
		updateCommand(w),
		takeoverCommand(w),
		devCommand(w),
		testCommand(w),
		execCommand(w),
		isDestructive(restartCommand(w)),
		isDestructive(signalCommand(w)),
		isDestructive(stopCommand(w)),
		isDestructive(gcCommand(w)),
	)
	addGroup(root, "Look at allocations:",
		statusCommand(w),
		logsCommand(w),
		topCommand(w),
		psCommand(w),
		statsCommand(w),
		checksCommand(w),
		serviceCommand(w),
		eventsCommand(w),
		fsCommand(w),
		apiCommand(w),
		proxyCommand(w),
	)
	addGroup(root, "Other commands:",
		validateCommand(w),
		stateCommand(w),
		varCommand(w),
		keyringCommand(w),
		tokenCommand(w),
		versionCommand(w),
	)
	root.Example = `  taskapi run examples/hello.nomad.hcl
  taskapi status
  taskapi stop`
	root.SetHelpCommandGroupID("Other commands:")
	root.SetCompletionCommandGroupID("Other commands:")
	strictHelp(root)
	strictCompletion(root)
	return root
}

// addGroup adds commands that the help lists under a heading.
func addGroup(root *cobra.Command, heading string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: heading, Title: heading})
	for _, cmd := range commands {
		cmd.GroupID = heading
	}
	root.AddCommand(commands...)
}

// wanted describes a flag's value, by its type's name.
var wanted = map[string]string{
	"bool":     "true or false",
	"duration": "a duration, such as 90s, 30m or 24h",
}

// flagError returns an error of a flag in the words of this program.
func flagError(cmd *cobra.Command, err error) error {
	if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if what, ok := wanted[bad.GetFlag().Value.Type()]; ok {
			err = fmt.Errorf("--%s %q must be %s", bad.GetFlag().Name, bad.GetValue(), what)
		}
	}
	return usage(fmt.Errorf("%w; see '%s --help'", err, cmd.CommandPath()))
}

// strictHelp makes "help" refuse an unknown command.
func strictHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"}) // it has just been made
	help.Example = `  taskapi help run`
	help.Args = func(_ *cobra.Command, args []string) error {
		found, rest, err := root.Find(args)
		if err != nil || len(rest) > 0 {
			return usage(unknownCommand(found, rest[0]))
		}
		return nil
	}
}

// strictCompletion makes "completion" refuse an unknown shell, and more arguments than a shell.
func strictCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	completion, _, _ := root.Find([]string{"completion"}) // it has just been made
	completion.Args = cobra.ArbitraryArgs
	completion.RunE = root.RunE
	completion.Example = `  source <(taskapi completion bash)`
	for _, shell := range completion.Commands() {
		shell.Args = noArgs
		shell.Example = "  taskapi completion " + shell.Name()
	}
}

// destructive annotates a command that ends or removes something: it is never suggested for a mistyped one.
const destructive = "destructive"

// isDestructive annotates a command.
func isDestructive(cmd *cobra.Command) *cobra.Command {
	cmd.Annotations = map[string]string{destructive: "true"}
	return cmd
}

// unknownCommand returns the error for a name that is no command below cmd.
func unknownCommand(cmd *cobra.Command, name string) error {
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

// doubleDashes turns Nomad's -flag into GNU's --flag. Arguments after "--", negative numbers and flags of one letter stay, and of exec and
// var lock what follows their flags: the command's own.
func doubleDashes(args []string) []string {
	out := make([]string, len(args))
	copy(out, args)
	words := wordsBeforeCommand(args)
	for i, arg := range args {
		switch {
		case arg == "--", words > 0 && i >= words && !isFlag(arg) && !takesValue(args[i-1]):
			return out
		case args[0] == "exec" && (arg == "-it" || arg == "-ti"): // two flags of one letter
		case len(arg) > 2 && arg[0] == '-' && isLetter(arg[1]) && arg[2] != '=':
			out[i] = "-" + arg
		}
	}
	return out
}

// wordsBeforeCommand returns how many words name a command that runs another one, 0 for other commands.
func wordsBeforeCommand(args []string) int {
	switch {
	case len(args) > 0 && args[0] == "exec":
		return 1
	case len(args) > 1 && args[0] == "var" && args[1] == "lock":
		return 2
	}
	return 0
}

func isFlag(arg string) bool { return len(arg) > 1 && arg[0] == '-' }

// takesValue reports whether the argument after one of exec's or var lock's is its value.
func takesValue(arg string) bool {
	return isFlag(arg) && slices.Contains(valueFlags, strings.TrimLeft(arg, "-"))
}

// valueFlags are the flags of exec and var lock that take a value.
var valueFlags = []string{
	"e", "escape", "task", "action", "data-dir", "seal-key", "namespace", "ttl", "delay", "backoff", "max-retry", "in",
}

func isLetter(c byte) bool {
	return strings.IndexByte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", c) >= 0
}

// oneArg accepts one argument. Its error says what that is.
func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return usage(fmt.Errorf("%s is missing: %s", what, cmd.UseLine()))
		case len(args) > 1:
			return usage(fmt.Errorf("want one %s, not %d: unexpected %q", what, len(args), args[1]))
		}
		return nil
	}
}
