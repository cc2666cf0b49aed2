// Package access has the commands that give a caller a way into a running allocation: exec runs a command in a task,
// restart and signal act on its tasks, api sends a request, proxy and gateway pass the requests of TCP clients on.
package access

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/client"
	"taskapi/cmd/taskapi/internal/output"
)

// execCommandLine is taskapi exec.
type execCommandLine struct {
	stdin, tty bool
	ttyGiven   bool // otherwise the command gets a terminal if there is one
	escape     string
	action     string
	names      []string // [ALLOC] [TASK]
	command    []string
}

func Exec(w base.Environment) *cobra.Command {
	var at base.TargetFlags
	var line execCommandLine
	cmd := &cobra.Command{
		Use:        "exec [flags] [ALLOC] [TASK] -- COMMAND [ARG]...",
		SuggestFor: []string{"shell", "sh", "bash", "ssh", "enter", "debug", "action"},
		Short:      "Run a command in a task",
		Long: `Runs a command in a running task: in its directory, with its environment, as its user.

On a terminal the command gets a terminal of its own, of the same size, and Ctrl-C goes to the command. ~. at the
beginning of a line ends the session; see --escape. Otherwise input, output and errors are passed on as they are. The
command ends when exec, the task or the task's taskapi ends, so it does not survive a restart of taskapi.

` + base.TaskArgs + `

Without "--", the first argument is ALLOC and the others are COMMAND, as with 'nomad alloc exec'.

Exit code: the command's, 128 and the number of the signal that ended it, 127 when there is no such command, 126 when
it can't be executed, 125 when taskapi itself failed: a flag is wrong, there is no such allocation, or the command was
cut off.`,
		Example: `  taskapi exec -- ls -l
  taskapi exec hello greeter -- /bin/sh
  taskapi exec db -- pg_dump | gzip > dump.gz
  taskapi exec --action flush-cache`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			line.ttyGiven = cmd.Flags().Changed("tty")
			args, dash := dashAmong(args, cmd.ArgsLenAtDash())
			if err := line.read(args, dash, cmd.Flags().Changed("alloc")); err != nil {
				return err
			}
			if err := line.checkTerminal(w); err != nil {
				return err
			}
			if line.action != "" {
				at.Sought.Tasks = base.AnyTasks
			}
			found, err := at.Find(cmd.Context(), line.names)
			if err == nil {
				err = commandError(line.run(cmd.Context(), w, found))
			}
			_, over := errors.AsType[*base.NotRunningError](err) // whatever word is the command
			if err != nil && !over && !base.IsSilent(err) && dash < 0 && line.action == "" {
				err = fmt.Errorf("%w; -- stands before COMMAND: %s", err, cmd.UseLine())
			}
			return err
		},
	}
	at.Add(cmd, w, base.Sought{Tasks: base.OneTask})
	f := cmd.Flags()
	f.BoolVarP(&line.stdin, "stdin", "i", true, "pass standard input on; =false: the command has none")
	f.BoolVarP(&line.tty, "tty", "t", false, "give the command a terminal (default when input and output are one)")
	f.StringVarP(&line.escape, "escape", "e", "~", "escape `CHARACTER` of a session on a terminal, or none")
	f.StringVar(&line.action, "action", "", "run this `ACTION` of the job in place of COMMAND")
	return base.SetRunsAnother(cmd)
}

// absent are words of the API about a program that is not there.
var absent = regexp.MustCompile(`was not found in|does not exist`)

// commandError gives the API's refusal to start a command the exit code that a shell gives.
func commandError(err error) error {
	refused, ok := errors.AsType[*client.StatusError](err)
	switch {
	case !ok || refused.Status != http.StatusBadRequest:
		return err
	case absent.MatchString(refused.Message):
		return base.ExitError{Err: err, Code: base.ExitNotFound}
	}
	return base.ExitError{Err: err, Code: base.ExitNotRun}
}

// dashAmong returns the arguments without the "--" that ends the names, and the number of arguments before it, below 0
// if there is none. The library itself finds a "--" that comes first.
func dashAmong(args []string, dash int) ([]string, int) {
	if dash >= 0 {
		return args, dash
	}
	if dash = slices.Index(args[:min(len(args), 3)], "--"); dash >= 0 {
		args = slices.Delete(slices.Clone(args), dash, dash+1)
	}
	return args, dash
}

// read divides the arguments into names and the command. dash is where "--" stood, below 0 for nowhere; named says that
// a flag names the allocation.
func (l *execCommandLine) read(args []string, dash int, named bool) error {
	switch {
	case dash < 0 && named:
		l.command = args
	case dash < 0 && l.action != "":
		l.names = args
	case dash < 0 && len(args) > 0:
		l.names, l.command = args[:1], args[1:]
	case dash >= 0:
		l.names, l.command = args[:dash], args[dash:]
	}
	switch {
	case l.action != "" && len(l.command) > 0:
		return base.Usagef("--action runs a command of the job: leave out %q", l.command[0])
	case l.action == "" && len(l.command) == 0:
		return base.Usagef("COMMAND is missing: taskapi exec [flags] [ALLOC] [TASK] -- COMMAND [ARG]")
	case len(l.names) > 2:
		return base.Usagef("want ALLOC and TASK before --, not %d arguments: unexpected %q", len(l.names), l.names[2])
	case slices.ContainsFunc(l.names, startsAsFlag) || dash < 0 && len(l.command) > 0 && startsAsFlag(l.command[0]):
		return base.Usagef("flags stand before ALLOC and TASK: taskapi exec [flags] [ALLOC] [TASK] -- COMMAND [ARG]")
	case l.escape != "none" && len(l.escape) != 1:
		return base.Usagef("--escape %q must be one character, or none; the environment is the task's own", l.escape)
	}
	return nil
}

func startsAsFlag(arg string) bool { return strings.HasPrefix(arg, "-") }

// checkTerminal decides whether the command gets a terminal.
func (l *execCommandLine) checkTerminal(w base.Environment) error {
	there := output.IsTerminal(w.Stdin) && output.IsTerminal(w.Stdout)
	switch {
	case !l.ttyGiven:
		l.tty = there && l.stdin
	case l.tty && !l.stdin:
		return base.Usagef("-t takes the input of a terminal: leave out -i=false")
	case l.tty && !output.IsTerminal(w.Stdin):
		return base.Usagef("-t needs a terminal as standard input: leave it out to pass input and output on as they are")
	}
	return nil
}

// checkAction returns a usage error if several tasks have the action and none is named.
func (l *execCommandLine) checkAction(t base.Target) error {
	if l.action == "" || t.Task != "" || t.Alloc == nil || t.Alloc.GetTaskGroup() == nil {
		return nil
	}
	var owners []string
	for _, task := range t.Alloc.GetTaskGroup().Tasks {
		if slices.ContainsFunc(task.Actions, func(a *api.Action) bool { return a.Name == l.action }) {
			owners = append(owners, task.Name)
		}
	}
	if len(owners) < 2 {
		return nil
	}
	return base.Usagef("the tasks %s have an action %s: name one, as in '--task %s'", strings.Join(owners, ", "),
		l.action, owners[0])
}

// run runs the command. A *base.ExitError has its exit code.
func (l *execCommandLine) run(ctx context.Context, w base.Environment, t base.Target) error {
	if err := l.checkAction(t); err != nil {
		return err
	}
	ctx, stop := base.UntilSignal(ctx)
	defer stop()
	ctx, hangUp := context.WithCancelCause(ctx)
	defer hangUp(nil)
	var stdin io.Reader = strings.NewReader("")
	if l.stdin {
		stdin = w.Stdin
	}
	sizes := make(<-chan api.TerminalSize)
	options := &api.QueryOptions{}
	if l.tty {
		lent, err := borrowTerminal(w.Stdin, w.Stdout)
		if err != nil {
			return fmt.Errorf("the terminal: %w", err)
		}
		defer lent.giveBack()
		sizes = lent.sizes
		options.Params = map[string]string{"term": w.Getenv("TERM")}
		if l.escape != "none" {
			stdin = &escaped{from: stdin, char: l.escape[0], atStart: true, end: func() { hangUp(errEscaped) }}
		}
	}
	code, cut := 0, error(nil)
	err := t.Ask(ctx, func(_ *client.Client, sdk *api.Client) (err error) {
		alloc := &api.Allocation{ID: t.ID, NodeID: "-"} // the SDK tries the node first; there is none of that name
		switch {
		case l.action == "":
			code, err = sdk.Allocations().Exec(ctx, alloc, t.Task, l.tty, l.command, stdin, w.Stdout, w.Stderr, sizes, options)
		case t.Alloc == nil:
			return fmt.Errorf("allocation %s: its saved state, which names its job, can't be read", output.ShortID(t.ID))
		default:
			alloc.TaskGroup = t.Alloc.TaskGroup
			code, err = sdk.Jobs().ActionExec(ctx, alloc, t.Alloc.JobID, t.Task, l.tty, nil, l.action, stdin, w.Stdout,
				w.Stderr, sizes, options)
		}
		_, refused := errors.AsType[api.UnexpectedResponseError](err)
		network, broke := errors.AsType[*net.OpError](err)
		if err != nil && !refused && (!broke || network.Op != "dial") { // of a session, and not of its beginning
			cut, err = err, nil
		}
		return err
	})
	switch {
	case errors.Is(context.Cause(ctx), errEscaped):
		return errEscaped
	case ctx.Err() != nil: // a signal
		return base.ExitError{Code: base.ExitSignalled + int(syscall.SIGINT)}
	case err != nil:
		return err
	case cut != nil:
		return fmt.Errorf("allocation %s: the command was cut off: %w", output.ShortID(t.ID), cut)
	case code != 0:
		return base.ExitError{Code: code}
	}
	return nil
}

// errEscaped ends a session by the escape character.
var errEscaped = errors.New("the session was ended, and the command with it")
