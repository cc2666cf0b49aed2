// Package cli is the command line of taskapi: the list of its commands, parsing, help and exit codes. The commands
// themselves stand in a package for each family (lifecycle, look, access, keys, shared, develop); what the families
// share stands in base, follow, start and vars.
package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/cli/access"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/develop"
	"taskapi/cmd/taskapi/internal/cli/keys"
	"taskapi/cmd/taskapi/internal/cli/lifecycle"
	"taskapi/cmd/taskapi/internal/cli/look"
	"taskapi/cmd/taskapi/internal/cli/shared"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/cmd/taskapi/internal/linewriter"
)

// Main runs the command that this process's arguments name, as a process of its own, and returns the exit code. version
// is the program's.
func Main(version string) int {
	w := base.Environment{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Env: os.Environ(), Version: version}
	if len(os.Args) > 1 && os.Args[1] == "run" {
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
	root := newRoot(w)
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

// newRoot returns the tree of commands.
func newRoot(w base.Environment) *cobra.Command {
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
		RunE:          base.HelpOrUnknown,
	}
	root.SetIn(w.Stdin)
	root.SetOut(w.Stdout)
	root.SetErr(w.Stderr)
	root.SetVersionTemplate(versionLine(w))
	root.SetFlagErrorFunc(base.FlagError)
	addGroup(root, "Run allocations:",
		lifecycle.Run(w),
		lifecycle.Attach(w),
		lifecycle.Update(w),
		lifecycle.Takeover(w),
		develop.Dev(w),
		develop.Test(w),
		access.Exec(w),
		base.IsDestructive(lifecycle.Restart(w)),
		base.IsDestructive(lifecycle.Signal(w)),
		base.IsDestructive(lifecycle.Stop(w)),
		base.IsDestructive(lifecycle.GC(w)),
	)
	addGroup(root, "Look at allocations:",
		look.Status(w),
		look.Logs(w),
		look.Top(w),
		look.PS(w),
		look.Checks(w),
		shared.Service(w),
		look.Events(w),
		look.FS(w),
		access.API(w),
		access.Proxy(w),
	)
	addGroup(root, "Other commands:",
		develop.Validate(w),
		lifecycle.State(w),
		shared.Var(w),
		keys.Keyring(w),
		keys.Token(w),
		versionCommand(w),
	)
	root.Example = `  taskapi run examples/hello.nomad.hcl
  taskapi status
  taskapi stop`
	root.SetHelpCommandGroupID("Other commands:")
	root.SetCompletionCommandGroupID("Other commands:")
	strictHelp(root)
	strictCompletion(root)
	base.Complete(root)
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

// strictHelp makes "help" refuse an unknown command.
func strictHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"}) // it has just been made
	help.Example = `  taskapi help run`
	help.Args = func(_ *cobra.Command, args []string) error {
		found, rest, err := root.Find(args)
		if err != nil || len(rest) > 0 {
			return base.Usage(base.UnknownCommand(found, rest[0]))
		}
		return nil
	}
}

// strictCompletion makes "completion" refuse an unknown shell, and more arguments than a shell.
func strictCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	completion, _, _ := root.Find([]string{"completion"}) // it has just been made
	completion.Args, completion.RunE = cobra.ArbitraryArgs, base.HelpOrUnknown
	completion.Example = `  source <(taskapi completion bash)`
	for _, shell := range completion.Commands() {
		shell.Args = base.CheckArgs
		shell.Example = "  taskapi completion " + shell.Name()
	}
}

// doubleDashes turns Nomad's -flag into GNU's --flag. It leaves alone what follows "--", negative numbers, flags of one
// letter and, of a command that runs another one, what follows its flags.
func doubleDashes(root *cobra.Command, args []string) []string {
	out := slices.Clone(args)
	cmd, words := root, 0
	for ; words < len(args); words++ {
		next := slices.IndexFunc(cmd.Commands(), func(sub *cobra.Command) bool { return sub.Name() == args[words] })
		if next < 0 {
			break
		}
		cmd = cmd.Commands()[next]
	}
	for i, arg := range args {
		switch {
		case arg == "--", base.RunsAnother(cmd) && i >= words && !isFlag(arg) && !takesValue(cmd, args[i-1]):
			return out
		case cmd.Name() == "exec" && (arg == "-it" || arg == "-ti"): // two flags of one letter
		case len(arg) > 2 && arg[0] == '-' && unicode.IsLetter(rune(arg[1])) && arg[2] != '=':
			out[i] = "-" + arg
		}
	}
	return out
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

// errorJSON is how a command with --json prints an error.
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
