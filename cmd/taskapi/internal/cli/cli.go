// Package cli is the command line of taskapi: the list of its commands, parsing, help and exit codes. The commands
// themselves stand in a package for each family (lifecycle, look, access, keys, shared, develop); the packages base,
// follow, start and vars hold their common parts.
package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"go/doc/comment"
	"os"
	"slices"
	"strings"
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
)

// Main runs the command that this process's arguments name, as a process of its own, and returns the exit code. version
// is the program's.
func Main(version string) int {
	w := base.Environment{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Env: os.Environ(), Version: version}
	if args := withoutNoun(os.Args[1:]); len(args) > 0 && args[0] == "run" {
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
	args = doubleDashes(root, withoutNoun(args))
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

func init() { cobra.EnableCommandSorting = false } // the help lists the daily commands first

// newRoot returns the tree of commands. A command that ends or removes something is destructive. One that has tasks or
// serves clients outlives the readers of its output.
func newRoot(w base.Environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "taskapi",
		Short: "Run one allocation of a Nomad job file, each task with its own authenticated socket",
		Long: `taskapi runs one allocation of a Nomad job file on this machine, without a cluster, and gives each of
its tasks a Unix socket where Nomad's HTTP API answers to the holder of the task's identity.

Flags may be written in Nomad's style (-var) or GNU's (--var).`,
		Example: `  taskapi run examples/hello.nomad.hcl
  taskapi status
  taskapi stop`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
	}
	version := root.Flags().BoolP("version", "v", false, "version for taskapi")
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if *version && len(args) == 0 {
			return w.Printf("%s", versionLine(w))
		}
		return base.HelpOrUnknown(cmd, args)
	}
	root.SetIn(w.Stdin)
	root.SetOut(w.Stdout)
	root.SetErr(w.Stderr)
	root.SetFlagErrorFunc(base.FlagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		out := cmd.OutOrStdout()
		fmt.Fprint(out, prose(cmd))
		if !cmd.IsAdditionalHelpTopicCommand() {
			fmt.Fprint(out, "\n", cmd.UsageString())
		}
	})
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped 80"))
	group := func(name string, commands ...*cobra.Command) {
		root.AddGroup(&cobra.Group{ID: name, Title: name + ":"})
		for _, cmd := range commands {
			cmd.GroupID = name
			root.AddCommand(cmd)
		}
	}
	lasting, destructive := base.OutlivesReaders, base.IsDestructive
	group("Daily", lasting(lifecycle.Run(w)), look.Status(w), look.Logs(w), access.Exec(w),
		destructive(access.Restart(w)), lasting(destructive(lifecycle.Stop(w, access.StopTasks))), access.Start(w),
		lifecycle.Update(w), look.Top(w), lifecycle.Attach(w))
	group("Operate", look.PS(w), look.Checks(w), look.Events(w), destructive(access.Signal(w)),
		destructive(lifecycle.GC(w)), look.FS(w), shared.Var(w), shared.Service(w), lasting(lifecycle.Takeover(w)))
	group("Develop and test", lasting(develop.Dev(w)), lasting(develop.Test(w)), develop.Validate(w), keys.Token(w),
		access.API(w))
	group("More", lasting(machine.Agent(w)), keys.Keyring(w), look.Config(w), look.State(w), lasting(look.UI(w)),
		lasting(access.Proxy(w)), lasting(access.Gateway(w)), versionCommand(w))
	root.AddCommand(&cobra.Command{Use: "environment", Short: "Variables of the environment, and exit codes",
		Long: environment})
	addHelp(root)
	base.Complete(root)
	return root
}

// prose returns what the help of a command says about it, in lines of 80 columns. An indented paragraph keeps its
// lines.
func prose(cmd *cobra.Command) string {
	var p comment.Parser
	printer := comment.Printer{TextCodePrefix: "  "}
	return string(printer.Text(p.Parse(cmp.Or(cmd.Long, cmd.Short+"."))))
}

// addHelp adds the library's commands help and completion. They refuse what they do not know.
func addHelp(root *cobra.Command) {
	root.SetHelpCommandGroupID("More")
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"}) // it has just been made
	help.Example = "  taskapi help run"
	help.Args = func(_ *cobra.Command, args []string) error {
		if found, rest, _ := root.Find(args); len(rest) > 0 {
			return base.UnknownCommand(found, rest[0])
		}
		return nil
	}
	root.SetCompletionCommandGroupID("More")
	root.InitDefaultCompletionCmd()
	completion, _, _ := root.Find([]string{"completion"})
	completion.Example = "  source <(taskapi completion bash)"
	for _, cmd := range append(completion.Commands(), completion) {
		cmd.Args = nil // base.Complete has better words
	}
}

const environment = `Every command reads these variables.

  TASKAPI_DATA_DIR  the data directory
                    (default root's, /var/lib/taskapi, and your own)
  XDG_STATE_HOME    your own data directory is taskapi in this directory
                    (default ~/.local/state)
  TASKAPI_CONFIG    the settings file
                    (default /etc/taskapi/taskapi.hcl for root)
  XDG_CONFIG_HOME   your own settings file is taskapi/taskapi.hcl in this
                    directory (default ~/.config)
  NOMAD_VAR_name    value of the job file's variable "name"
  NOMAD_NAMESPACE   the namespace of variables and services
  NO_COLOR          if it is set, there are no colours; CLICOLOR_FORCE=1 turns
                    them on without a terminal

Exit code: 0 when the work is done, or the allocation completed, was stopped or left running, 1 when
it failed or the work could not be done, 2 when the job file, a flag or an argument is wrong and nothing was changed.`

// nouns are the words that stand before a verb for Nomad and docker: 'nomad alloc logs', 'docker compose ps'.
var nouns = []string{"job", "alloc", "operator", "acl", "compose", "container"}

// withoutNoun returns arguments without the noun before the command, so that 'taskapi job run FILE' runs the file.
func withoutNoun(args []string) []string {
	if len(args) > 1 && slices.Contains(nouns, args[0]) && !strings.HasPrefix(args[1], "-") {
		return args[1:]
	}
	return args
}

// doubleDashes turns Nomad's -flag into GNU's --flag. It does not change words after "--", negative numbers, flags of
// one letter and, for a command that runs another one, words after its flags.
func doubleDashes(root *cobra.Command, args []string) []string {
	out := slices.Clone(args)
	cmd, rest := root, args
	for len(rest) > 0 {
		next, _, _ := cmd.Find(rest[:1])
		if next == cmd {
			break
		}
		cmd, rest = next, rest[1:]
	}
	cmd.InitDefaultHelpFlag()
	for i := len(args) - len(rest); i < len(args); i++ {
		name, isFlag := strings.CutPrefix(args[i], "-")
		name, _, _ = strings.Cut(name, "=")
		switch {
		case name == "-", base.RunsAnother(cmd) && !isFlag && !takesValue(cmd, args[i-1]):
			return out
		case isFlag && len(name) > 1 && name[0] > '9' && !areLetters(cmd, name):
			out[i] = "-" + args[i]
		}
	}
	return out
}

// areLetters reports whether a command has no flag of this name, and one for each letter of it, as in -it; a number may
// follow.
func areLetters(cmd *cobra.Command, name string) bool {
	unknown := func(letter rune) bool {
		return letter >= utf8.RuneSelf || cmd.Flags().ShorthandLookup(string(letter)) == nil
	}
	return cmd.Flags().Lookup(name) == nil && !strings.ContainsFunc(strings.TrimRight(name, "0123456789"), unknown)
}

// takesValue reports whether the argument that follows a flag of a command is that flag's value.
func takesValue(cmd *cobra.Command, arg string) bool {
	name := strings.TrimLeft(arg, "-")
	flag := cmd.Flags().Lookup(name)
	if flag == nil && len(name) == 1 {
		flag = cmd.Flags().ShorthandLookup(name)
	}
	return name != arg && flag != nil && flag.NoOptDefVal == ""
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
