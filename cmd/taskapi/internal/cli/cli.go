// Package cli is the command line of taskapi: the list of its commands, parsing, help and exit codes. The commands
// themselves stand in a package for each family (lifecycle, look, access, keys, shared, develop); the packages base,
// follow, start and vars hold their common parts.
package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/cli/access"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/develop"
	"taskapi/cmd/taskapi/internal/cli/keys"
	"taskapi/cmd/taskapi/internal/cli/lifecycle"
	"taskapi/cmd/taskapi/internal/cli/look"
	"taskapi/cmd/taskapi/internal/cli/machine"
	"taskapi/cmd/taskapi/internal/cli/shared"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/internal/slice"
)

// Main runs the command that this process's arguments name, as a process of its own, and returns the exit code. version
// is the program's.
func Main(version string) int {
	w := base.Environment{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Env: os.Environ(), Version: version}
	if named(base.WithoutNoun(os.Args[1:])) == "run" {
		w.Signals = start.CatchSignals()
	}
	args, err := lifecycle.HandedArgs(os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "taskapi: %v\n", err)
		return base.ExitUsage
	}
	return Run(context.Background(), args, w)
}

// Run runs the command that args name and returns the exit code.
func Run(ctx context.Context, args []string, w base.Environment) int {
	args = base.WithoutNoun(args)
	root := newRoot(w, named(args))
	args = doubleDashes(root, args)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	code := base.ExitCode(err)
	if err == nil || base.IsSilent(err) {
		return code
	}
	last := base.QueuedLog(w)
	if wantsJSON(cmd, args) {
		_ = json.NewEncoder(last).Encode(errorJSON{err.Error(), code}) // text alone, which can always be encoded
	} else {
		fmt.Fprintf(last, "taskapi: %s\n", linewriter.Printable(err.Error()))
	}
	base.FlushAll(last)
	return code
}

// command is a command of taskapi. It is built only if it is used, since building all of them takes a tenth of the time
// that `taskapi version` takes.
type command struct {
	name        string
	build       func(base.Environment) *cobra.Command
	destructive bool
	lasts       bool // it has tasks or serves clients, so it goes on without a reader of its output
}

// groups are the commands as the help lists them; those of the last group only with --all.
var groups = []struct {
	heading  string
	commands []command
}{
	{"Daily", []command{
		{name: "run", build: lifecycle.Run, lasts: true},
		{name: "status", build: look.Status},
		{name: "logs", build: look.Logs},
		{name: "exec", build: access.Exec},
		{name: "restart", build: access.Restart, destructive: true},
		{name: "stop", build: stop, destructive: true, lasts: true},
		{name: "start", build: access.Start},
		{name: "update", build: lifecycle.Update},
		{name: "top", build: look.Top},
		{name: "attach", build: lifecycle.Attach},
	}},
	{"Operate", []command{
		{name: "ps", build: look.PS},
		{name: "checks", build: look.Checks},
		{name: "events", build: look.Events},
		{name: "signal", build: access.Signal, destructive: true},
		{name: "gc", build: lifecycle.GC, destructive: true},
		{name: "fs", build: look.FS},
		{name: "var", build: shared.Var},
		{name: "service", build: shared.Service},
		{name: "takeover", build: lifecycle.Takeover, lasts: true},
	}},
	{"Develop and test", []command{
		{name: "dev", build: develop.Dev, lasts: true},
		{name: "test", build: develop.Test, lasts: true},
		{name: "validate", build: develop.Validate},
		{name: "token", build: keys.Token},
		{name: "api", build: access.API},
	}},
	{"More", []command{
		{name: "agent", build: machine.Agent, lasts: true},
		{name: "keyring", build: keys.Keyring},
		{name: "config", build: look.Config},
		{name: "state", build: look.State},
		{name: "ui", build: look.UI, lasts: true},
		{name: "proxy", build: access.Proxy, lasts: true},
		{name: "gateway", build: access.Gateway, lasts: true},
		{name: "version", build: versionCommand},
		{name: "completion"}, // the library makes this command and the next
		{name: "help"},
	}},
}

func stop(w base.Environment) *cobra.Command { return lifecycle.Stop(w, access.StopTasks) }

// named returns the command that the first argument names, or "".
func named(args []string) string {
	for _, g := range groups {
		for _, c := range g.commands {
			if len(args) > 0 && args[0] == c.name && c.build != nil {
				return c.name
			}
		}
	}
	return ""
}

// newRoot returns the tree of commands, or of one command alone unless only is empty.
func newRoot(w base.Environment, only string) *cobra.Command {
	root := &cobra.Command{
		Use:   "taskapi",
		Short: "Run one allocation of a Nomad job file, each task with its own authenticated socket",
		Long: `taskapi runs one allocation of a Nomad job file on this machine, without a cluster, and gives each of
its tasks a Unix socket where Nomad's HTTP API answers to the holder of the task's identity.

Flags may be written in Nomad's style (-var) or GNU's (--var).`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,

		DisableSuggestions: true, // base.UnknownCommand makes them
	}
	root.SetIn(w.Stdin)
	root.SetOut(w.Stdout)
	root.SetErr(w.Stderr)
	version := root.Flags().BoolP("version", "v", false, "version for taskapi")
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if *version && len(args) == 0 {
			return w.Printf("%s", versionLine(w))
		}
		return base.HelpOrUnknown(cmd, args)
	}
	root.SetFlagErrorFunc(base.FlagError)
	for _, g := range groups {
		for _, c := range g.commands {
			if c.build == nil || only != "" && c.name != only {
				continue
			}
			cmd := c.build(w)
			if c.destructive {
				base.IsDestructive(cmd)
			}
			if c.lasts {
				base.OutlivesReaders(cmd)
			}
			root.AddCommand(cmd)
		}
	}
	root.Example = `  taskapi run examples/hello.nomad.hcl
  taskapi status
  taskapi stop`
	strictHelp(root)
	strictCompletion(root)
	base.Complete(root)
	return root
}

// strictHelp makes "help" refuse an unknown command, and list the commands by their groups.
func strictHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"}) // it has just been made
	help.Short = "Explain a command, or list them"
	help.Long = "Explains a command or, without one, lists the commands that are used most."
	help.Example = `  taskapi help run
  taskapi help --all`
	all := help.Flags().Bool("all", false, "list every command, and the environment's variables")
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		out := cmd.OutOrStdout()
		text := base.Help(cmd, base.HelpColumns(out))
		if !cmd.HasParent() {
			text = overview(root, *all, base.HelpColumns(out))
		}
		fmt.Fprint(out, text)
	})
	help.Args = func(_ *cobra.Command, args []string) error {
		found, rest, err := root.Find(args)
		if err != nil || len(rest) > 0 {
			return base.Usage(base.UnknownCommand(found, rest...))
		}
		return nil
	}
}

// overview returns the help of the program: its commands by groups; the last group, and what they have in common, only
// with all.
func overview(root *cobra.Command, all bool, columns int) string {
	var b strings.Builder
	b.WriteString(base.HelpText(root.Long, columns) + "\nUsage:\n  taskapi COMMAND [flags]\n")
	shown, more := groups, groups[len(groups)-1]
	if !all {
		shown = groups[:len(groups)-1]
	}
	for _, g := range shown {
		var items []base.HelpItem
		for _, c := range g.commands {
			cmd, _, _ := root.Find([]string{c.name}) // there is one of each
			items = append(items, base.HelpItem{Term: fmt.Sprintf("%-10s", c.name), Text: cmd.Short})
		}
		b.WriteString("\n" + g.heading + ":\n" + base.HelpList(items, columns))
	}
	if all {
		b.WriteString("\nEnvironment:\n" + base.HelpText(environment+"\n\n"+exitCodes, columns))
		return b.String()
	}
	names := slice.Map(more.commands, func(c command) string { return c.name })
	b.WriteString("\n" + base.HelpText("'taskapi COMMAND --help' explains a command. 'taskapi help --all' also lists the "+
		"environment's variables, and the commands "+strings.Join(names, ", ")+".", columns))
	return b.String()
}

// exitCodes are those of most commands.
const exitCodes = `Exit code: 0 when the work is done, or the allocation completed, was stopped or left running, 1 when
it failed or the work could not be done, 2 when the job file, a flag or an argument is wrong and nothing was changed.`

// environment lists the variables that every command reads.
const environment = `  TASKAPI_DATA_DIR  the data directory (default root's, /var/lib/taskapi, and your own)
  XDG_STATE_HOME    your own data directory is taskapi in this directory (default ~/.local/state)
  TASKAPI_CONFIG    the settings file (default /etc/taskapi/taskapi.hcl for root)
  XDG_CONFIG_HOME   your own settings file is taskapi/taskapi.hcl in this directory (default ~/.config)
  NOMAD_VAR_name    value of the job file's variable "name"
  NOMAD_NAMESPACE   the namespace of variables and services
  NO_COLOR          if it is set, there are no colours; CLICOLOR_FORCE=1 turns them on without a terminal`

// strictCompletion makes "completion" refuse an unknown shell, and more arguments than a shell.
func strictCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	completion, _, _ := root.Find([]string{"completion"}) // it has just been made
	completion.Args, completion.RunE = cobra.ArbitraryArgs, base.HelpOrUnknown
	completion.Short = "Print a script that makes a shell complete what you type"
	completion.Long = `Prints a script that makes a shell complete commands, flags, allocations and tasks.

bash needs the package bash-completion.`
	completion.Example = "  source <(taskapi completion bash)"
	for _, shell := range completion.Commands() {
		shell.Args = base.CheckArgs
		shell.Short = "Print the script for " + shell.Name()
		shell.Long = "Prints the script that makes " + shell.Name() + " complete commands, flags, allocations and tasks."
		switch shell.Name() {
		case "bash", "zsh":
			shell.Example = "  source <(taskapi completion " + shell.Name() + ")"
		case "fish":
			shell.Example = "  taskapi completion fish | source"
		default:
			shell.Example = "  taskapi completion " + shell.Name() + " | Out-String | Invoke-Expression"
		}
		if f := shell.Flags().Lookup("no-descriptions"); f != nil {
			f.Usage = "complete without descriptions"
		}
	}
}

// doubleDashes turns Nomad's -flag into GNU's --flag. It does not change words after "--", negative numbers, flags of
// one letter and, for a command that runs another one, words after its flags.
func doubleDashes(root *cobra.Command, args []string) []string {
	out := slices.Clone(args)
	cmd, words := root, 0
	for ; words < len(args); words++ {
		next := slices.IndexFunc(cmd.Commands(), func(sub *cobra.Command) bool {
			return sub.Name() == args[words] || sub.HasAlias(args[words])
		})
		if next < 0 {
			break
		}
		cmd = cmd.Commands()[next]
	}
	for i, arg := range args {
		switch {
		case arg == "--", base.RunsAnother(cmd) && i >= words && !isFlag(arg) && !takesValue(cmd, args[i-1]):
			return out
		case isFlag(arg) && areLetters(cmd, arg[1:]): // as in -it
		case len(arg) > 2 && arg[0] == '-' && unicode.IsLetter(rune(arg[1])) && arg[2] != '=':
			out[i] = "-" + arg
		}
	}
	return out
}

// areLetters reports whether a command has no flag of this name, and one for each letter of it; a number may follow.
func areLetters(cmd *cobra.Command, name string) bool {
	unknown := func(letter rune) bool {
		return letter >= utf8.RuneSelf || cmd.Flags().ShorthandLookup(string(letter)) == nil
	}
	return cmd.Flags().Lookup(name) == nil && !strings.ContainsFunc(strings.TrimRight(name, "0123456789"), unknown)
}

func isFlag(arg string) bool { return len(arg) > 1 && arg[0] == '-' }

// takesValue reports whether the argument that follows a flag of a command is that flag's value.
func takesValue(cmd *cobra.Command, arg string) bool {
	name := strings.TrimLeft(arg, "-")
	flag := cmd.Flags().Lookup(name)
	if flag == nil && len(name) == 1 {
		flag = cmd.Flags().ShorthandLookup(name)
	}
	return isFlag(arg) && flag != nil && flag.NoOptDefVal == ""
}

type errorJSON struct {
	Error    string `json:"error"`
	ExitCode int    `json:"exit_code"`
}

// wantsJSON reports whether a command was given --json, also after a flag that is wrong.
func wantsJSON(cmd *cobra.Command, args []string) bool {
	flag := cmd.Flags().Lookup("json")
	if flag == nil {
		return false
	}
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return flag.Value.String() == "true" || slices.ContainsFunc(args, func(arg string) bool {
		return strings.TrimLeft(arg, "-") == "json" && strings.HasPrefix(arg, "-")
	})
}
