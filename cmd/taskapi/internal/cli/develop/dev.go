// Package develop has the commands for those who write and test a workload: dev, test and validate.
package develop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/jobspec/review"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/cmd/taskapi/internal/output"
	"taskapi/cmd/taskapi/internal/settings"
)

type devOptions struct{ start.Options }

func Dev(w base.Environment) *cobra.Command {
	var opts devOptions
	cmd := &cobra.Command{
		Use:   "dev [flags] -- COMMAND [ARG]...",
		Short: "Run a command as a task, without a job file",
		Long: `Runs a command as the only task of a job, without a job file.

The command has this environment, and besides it the task's socket, its token in NOMAD_TOKEN and in a file, and all
NOMAD_ variables. The socket answers before the command starts.

The command has taskapi's standard input, output and error. taskapi itself writes nothing while the command runs,
except with -v. On a terminal, the command has a terminal of its own, so that Ctrl-C and Ctrl-Z reach it. Signals go
to the command, and a second SIGINT or SIGTERM kills it. When it ends, or when taskapi is killed, its background
processes are killed. 'taskapi logs' does not show the command's output.

Without --data-dir, everything is in a temporary directory that is removed at the end. If taskapi is killed, the next
'taskapi dev', 'taskapi test' or 'taskapi gc --all' removes the directory.

Each --identity gives the task another identity, NAME or NAME=AUDIENCE. Its token is in NOMAD_TOKEN_NAME and in
secrets/nomad_NAME.jwt. With --ttl, tokens expire after that time, and those in files are renewed before.

Exit code: the command's, 128 and the number of the signal that ended it, 127 when there is no such command, 126 when
it can't be executed, 125 when taskapi itself failed: a flag is wrong, or the command could not be started.`,
		Example: `  taskapi dev -- go test ./...
  taskapi dev --policy nomad -- ./client
  taskapi dev --task web --identity bank=https://bank.example -- sh -c 'cat $NOMAD_SECRETS_DIR/nomad_bank.jwt'`,
		Args: afterDashes,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("ttl") && opts.TTL < time.Second {
				return base.Usagef("--ttl is %v: give at least 1s, such as 10s", opts.TTL)
			}
			return opts.run(cmd.Context(), args, cmd.Flags(), w)
		},
	}
	cmd.Flags().SetInterspersed(false) // the first word that is no flag must stand after --
	opts.Add(cmd)
	return base.ExitsAsAnother(cmd)
}

// afterDashes accepts a command after "--", and nothing before, so that the command's own flags can't be mistaken for
// taskapi's.
func afterDashes(cmd *cobra.Command, args []string) error {
	switch dash := cmd.ArgsLenAtDash(); {
	case len(args) == 0:
		return base.Usagef("COMMAND is missing: %s", cmd.UseLine())
	case dash != 0:
		return base.Usagef("unexpected %q before --: %s", args[0], cmd.UseLine())
	}
	return nil
}

func (o devOptions) run(ctx context.Context, command []string, flags *pflag.FlagSet, w base.Environment) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, forwarded...)
	defer signal.Stop(signals)
	front, err := newForeground(o.Task, command, w)
	if err != nil {
		return err
	}
	if _, o.Settings, err = o.Next(settings.Record{}, flags, false, w); err != nil {
		return err
	}
	o.AllowSharedUser = true // the user of taskapi may do what the command may
	job, group, err := o.build()
	if err != nil {
		return err
	}
	l, remove, err := start.TiedLayout(ctx, o.DataDir, w)
	if err != nil {
		return err
	}
	defer remove()
	t := &tied{layout: l, settings: o.Settings, alloc: agent.NewAllocation(uuid.NewString(), job, group), environment: w}
	t.foreground = &front.Foreground
	t.faults, t.logs = o.Faults, o.Verbose
	if err := front.open(w); err != nil {
		return err
	}
	defer front.terminal.close()
	t.started = front.terminal.begin
	end := start.Each(signals, front.forward(t))
	err = t.run(ctx)
	end()
	front.terminal.close()
	start.PrintRefused(w.Stderr, &t.refusals)
	return front.result(t, err)
}

// identityLetters are the characters in the name of an identity.
const identityLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

// build returns the job with the command as its task.
func (o devOptions) build() (*api.Job, *api.TaskGroup, error) {
	for _, flag := range [][2]string{{"task", o.Task}, {"job", o.Job}, {"namespace", o.Namespace}} {
		if flag[1] == "" {
			return nil, nil, base.Usagef("--%s is empty: give it a value, or leave it out", flag[0])
		}
	}
	task := api.NewTask(o.Task, "raw_exec").SetConfig("command", "/proc/self/exe")
	task.User = o.User
	task.LogConfig = &api.LogConfig{Disabled: new(true)}
	task.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new(api.RestartPolicyModeFail)}
	task.Identity = &api.WorkloadIdentity{Env: true, File: true, TTL: o.TTL}
	for _, text := range o.OtherIdentities {
		name, audience, given := strings.Cut(text, "=")
		if !given {
			audience = name
		}
		if name == "" || strings.Trim(name, identityLetters) != "" || audience == "" {
			return nil, nil, base.Usagef("--identity %q: an identity's name has letters, digits, hyphens and underscores: "+
				"write NAME=AUDIENCE for an audience that is not, such as bank=https://bank.example", text)
		}
		task.Identities = append(task.Identities, &api.WorkloadIdentity{Name: name, Audience: []string{audience}, Env: true,
			File: true, TTL: o.TTL})
	}
	group := api.NewTaskGroup(o.Job, 1).AddTask(task)
	group.RestartPolicy = task.RestartPolicy
	job := &api.Job{ID: &o.Job, Name: &o.Job, Namespace: &o.Namespace, Type: new(api.JobTypeBatch),
		Datacenters: []string{"*"},
		TaskGroups:  []*api.TaskGroup{group}}
	job.Canonicalize()
	found, findings, err := o.Review(job, "")
	for _, f := range findings {
		if f.Severity == review.Refused {
			err = errors.Join(err, errors.New(f.Message))
		}
	}
	return job, found, base.Usage(err)
}

type foreground struct {
	interfaces.Foreground
	command  string
	terminal *devTerminal // nil: it has the files themselves
}

// newForeground finds the command. Errors: base.ExitError.
func newForeground(task string, command []string, w base.Environment) (*foreground, error) {
	path, err := exec.LookPath(command[0])
	if errors.Is(err, exec.ErrDot) {
		err = nil // a path that the user has made so
	}
	if err != nil {
		return nil, base.CommandError(command[0], err)
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("the working directory: %w", err)
	}
	return &foreground{Foreground: interfaces.Foreground{Task: task, Path: path, Args: command[1:], Dir: dir, Env: w.Env},
		command: command[0]}, nil
}

// open chooses the command's files: this program's own, with a new terminal in place of a terminal.
func (f *foreground) open(w base.Environment) error {
	for _, stream := range []any{w.Stdin, w.Stdout, w.Stderr} {
		file, ok := stream.(*os.File)
		if !ok {
			return errors.New("standard input, output and error must be files")
		}
		f.Files = append(f.Files, file)
	}
	if !output.IsTerminal(f.Files[0]) {
		return nil
	}
	t, err := newDevTerminal(f.Files[0])
	if err != nil {
		return fmt.Errorf("a terminal for the command: %w", err)
	}
	f.terminal, f.TTY = t, true
	for i, file := range f.Files {
		if output.IsTerminal(file) {
			f.Files[i] = t.slave
			if i > 0 {
				t.shows = true
			}
		}
	}
	return nil
}

// forwarded are the signals that go to the command.
var forwarded = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM,
	syscall.SIGCONT, syscall.SIGWINCH,
}

// forward returns a function that passes signals on to the command. A second signal to stop kills the command.
func (f *foreground) forward(t *tied) func(syscall.Signal) {
	stops, latest := 0, time.Time{}
	return func(sig syscall.Signal) {
		switch sig {
		case syscall.SIGWINCH:
			if f.terminal != nil {
				f.terminal.resize()
				return
			}
		case syscall.SIGINT, syscall.SIGTERM:
			if time.Since(latest) < agent.SameStop { // the same one, sent to a process and to its group
				return
			}
			stops, latest = stops+1, time.Now()
			if stops > 1 {
				t.end(context.Background(), true)
				return
			}
		}
		t.signal(sig)
	}
}

func (f *foreground) result(t *tied, err error) error {
	var e *api.TaskEvent
	if runner := t.current(); runner != nil {
		e = base.LastEvent(runner.Alloc().TaskStates[f.Task], api.TaskTerminated, api.TaskDriverFailure,
			api.TaskSetupFailure, api.TaskFailedValidation)
	}
	switch {
	case e == nil && t.stopping != 0:
		return base.ExitError{Code: base.ExitSignalled + int(t.stopping)}
	case e == nil:
		return cmp.Or(err, errors.New("the command was never started"))
	case e.Type == api.TaskTerminated && base.TaskExitCode(e) == 0:
		return nil
	case e.Type == api.TaskTerminated:
		return base.ExitError{Code: base.TaskExitCode(e)}
	}
	code := base.ExitOwn
	if e.Type == api.TaskDriverFailure {
		code = base.ExitNotRun
	}
	return base.ExitError{Err: fmt.Errorf("%s: %s", f.command,
		linewriter.OneLine(cmp.Or(e.DisplayMessage, e.DriverError, e.Message))), Code: code}
}
