package develop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/cmd/taskapi/internal/settings"
	"taskapi/socket"
)

type testOptions struct{ start.Options }

func Test(w base.Environment) *cobra.Command {
	var opts testOptions
	cmd := &cobra.Command{
		Use:   "test [flags] JOBFILE -- COMMAND [ARG]...",
		Short: "Run a command, such as go test, against a group of tasks",
		Long: `Runs a group of the job file, runs the command when the group is healthy, and stops the group.

A group is healthy when its tasks have run and its checks have succeeded for min_healthy_time of its update block, by
default 10 seconds. The command has this environment, standard input, output and error, and also

  NOMAD_UNIX_ADDR   the operator's socket, or with --as TASK that task's
  NOMAD_ADDR        the same
  NOMAD_TOKEN       its token; good for an hour, or for the ttl of the identity
  NOMAD_TOKEN_FILE  file with the renewed token: read it before each use
  NOMAD_ALLOC_ID    the allocation; also NOMAD_JOB_ID, NOMAD_NAMESPACE, ...
  NOMAD_ADDR_LABEL  address of the port LABEL; also NOMAD_IP_LABEL, ...

--as TASK has that task's token written to a file. If a task has failed, the last lines of its standard error are
shown. Ctrl-C ends the command, and the group gracefully; a second one kills both. Nothing of the group outlives this
command, even if it is killed. Without --data-dir, everything is in a temporary directory that is removed at the end.

--json prints one JSON object about the test to standard output; the command's own output goes to standard error.
--junit writes a test case for the start, the command, the stop and each task.

Exit code: the command's, 128 and the number of the signal that ended it, 127 when there is no such command, 126 when
it can't be executed, 125 when taskapi itself failed: a flag or the job file is wrong, the group did not become
healthy, or it failed while the command succeeded.`,
		Example: `  taskapi test job.nomad.hcl -- go test ./...
  taskapi test --wait=running --as web --junit report.xml job.nomad.hcl -- ./check.sh`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch dash := cmd.ArgsLenAtDash(); {
			case len(args) == 0 || dash == 0:
				return base.Usagef("JOBFILE is missing: %s", cmd.UseLine())
			case dash != 1:
				return base.Usagef("want one JOBFILE, then -- and the command: %s", cmd.UseLine())
			case len(args) == 1:
				return base.Usagef("COMMAND is missing after --: %s", cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return opts.run(cmd, args[0], args[1:], w)
		},
	}
	opts.Add(cmd)
	return base.ExitsAsAnother(cmd)
}

func (o testOptions) run(cmd *cobra.Command, jobFile string, command []string, w base.Environment) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	if err := o.Until.CheckFlags(cmd.Flags()); err != nil {
		return err
	}
	if o.As == "" {
		return base.Usagef("--as is empty: give operator, or the name of a task")
	}
	front, err := newForeground("", command, w) // before a group is started in vain
	if err != nil {
		return err
	}
	_, chosen, err := o.Next(settings.Record{}, cmd.Flags(), false, w)
	if err != nil {
		return err
	}
	loaded, err := o.Load(jobFile, chosen, w)
	if err != nil {
		return err
	}
	if interfaces.IsParent(loaded.Job) {
		return base.Usagef("%s: job %q only starts others, by dispatches or by the clock: leave out its parameterized or "+
			"periodic block to test its tasks", jobFile, *loaded.Job.ID)
	}
	if err := o.giveFile(loaded.Group); err != nil {
		return err
	}
	alloc := agent.NewAllocation(uuid.NewString(), loaded.Job, loaded.Group)
	if err := errors.Join(chosen.CheckUsers(loaded.Group), o.Until.Check(alloc)); err != nil {
		return base.Usage(loaded.Hide(err))
	}
	ctx := cmd.Context()
	l, remove, err := start.TiedLayout(ctx, o.DataDir, w)
	if err != nil {
		return err
	}
	defer remove()
	t := &testRun{options: o, front: front, environment: w, tied: &tied{
		layout: l, settings: chosen, alloc: alloc, submission: loaded.Submission, environment: w, faults: o.Faults,
	}, report: &report{
		AllocID: alloc.ID, JobID: alloc.JobID, Group: alloc.TaskGroup, Command: command, As: o.As, Phases: []phase{},
		Tasks: []taskEnd{}, begun: time.Now(),
	}}
	if o.Verbose {
		t.tied.events, t.tied.logs = w.Stderr, true
	}
	err = t.run(ctx, signals)
	start.PrintRefused(w.Stderr, &t.tied.refusals)
	unwritten := t.report.write(o, w, err)
	if err != nil && unwritten != nil {
		w.Warnf("%v", unwritten)
		return err
	}
	return cmp.Or(err, unwritten)
}

// giveFile makes the task that --as names write its token to a file.
func (o testOptions) giveFile(group *api.TaskGroup) error {
	if o.As == start.AsOperator {
		return nil
	}
	var names []string
	for _, task := range group.Tasks {
		names = append(names, strconv.Quote(task.Name))
		if task.Name != o.As {
			continue
		}
		if task.Identity == nil {
			task.Identity = &api.WorkloadIdentity{}
		}
		task.Identity.File = true
		return nil
	}
	return base.Usagef("--as %q is neither operator nor a task of group %q, which are %s", o.As, *group.Name,
		strings.Join(names, ", "))
}

type testRun struct {
	options     testOptions
	front       *foreground
	environment base.Environment
	report      *report
	tied        *tied

	mu      sync.Mutex  // guards the fields below
	process *os.Process // of the command, while it runs
	stops   int         // signals to stop
	by      syscall.Signal
	ends    bool  // the group is to stop
	failure error // of the group, before it was to stop
}

// errGroupOver ends the wait for a group that has ended.
var errGroupOver = errors.New("the group has ended")

// run starts the group, runs the command once the group is in the wanted state, and stops the group. Errors:
// base.ExitError with the command's exit code.
func (t *testRun) run(ctx context.Context, signals <-chan os.Signal) error {
	life, end := context.WithCancel(ctx)
	defer end()
	waiting, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var background sync.WaitGroup
	defer background.Wait()
	defer start.Each(signals, t.onSignal(giveUp))()

	over := make(chan error, 1)
	awaited := make(chan struct{})
	t.tied.ending = func(alloc *api.Allocation) {
		giveUp(errGroupOver)
		<-awaited
		t.collect(alloc)
	}
	background.Go(func() {
		err := t.tied.run(life)
		giveUp(cmp.Or(err, errGroupOver))
		over <- err
	})
	failed := t.report.phase("group is "+t.options.Until.What, func() error { return t.await(waiting) })
	close(awaited)
	var result error
	if failed == nil {
		result = t.report.phase(phaseCommand, t.command)
	}
	stopped := t.report.phase(phaseStop, func() error {
		t.mu.Lock()
		t.ends = true
		t.mu.Unlock()
		t.tied.end(ctx, false)
		err := <-over
		if failed == nil {
			err = cmp.Or(err, t.failure)
		}
		return err
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case result != nil: // which counts before the group's
		if stopped != nil {
			t.environment.Warnf("%v", stopped)
		}
		return result
	case t.by != 0: // while no command ran
		return base.ExitError{Code: base.ExitSignalled + int(t.by)}
	}
	return errors.Join(failed, stopped)
}

// await waits until the group is in the state that --wait names. Errors: why it is not, with its tasks' last output.
func (t *testRun) await(ctx context.Context) error {
	until := t.options.Until
	late := fmt.Errorf("the group is not %s after %v", until.What, until.Timeout)
	ctx, cancel := context.WithTimeoutCause(ctx, until.Timeout, late)
	defer cancel()
	alloc, err := t.tied.until(ctx, until.Settled)
	if alloc == nil {
		return err
	}
	if errors.Is(err, late) {
		err = fmt.Errorf("%w: %s", err, strings.Join(start.Problems(alloc), ", "))
	}
	if err == nil || errors.Is(err, errGroupOver) {
		err = until.Result(alloc)
		if err == nil && until.What == start.WaitRunning && alloc.ClientStatus != api.AllocClientStatusRunning {
			err = fmt.Errorf("the group has ended (%s) before it was running", alloc.ClientStatus)
		}
	}
	if err == nil {
		return nil
	}
	checks, _ := t.tied.current().Checks()
	return start.WithCauses(t.tied.layout, alloc, checks, err)
}

// collect records how the tasks have ended, while their files still exist, and whether the group has failed by itself.
func (t *testRun) collect(alloc *api.Allocation) {
	t.mu.Lock()
	if !t.ends && alloc.ClientStatus == api.AllocClientStatusFailed {
		t.failure = start.WithCauses(t.tied.layout, alloc, nil, errors.New("the group failed while the command ran"))
	}
	t.mu.Unlock()
	words := follow.LastWords{Files: t.tied.layout.Files(alloc)}
	for _, name := range base.TaskNames(alloc) {
		t.report.task(name, alloc.TaskStates[name], words.Of(name))
	}
}

// command runs the command. Errors: base.ExitError with its exit code.
func (t *testRun) command() error {
	env, err := t.variables()
	if err != nil {
		return err
	}
	stdout := t.environment.Stdout
	if t.options.JSON {
		stdout = t.environment.Stderr
	}
	cmd := exec.Command(t.front.Path, t.front.Args...)
	cmd.Args[0] = t.front.command
	cmd.Env, cmd.Dir = env, t.front.Dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = t.environment.Stdin, stdout, t.environment.Stderr
	t.mu.Lock()
	if t.stops > 0 {
		t.mu.Unlock()
		return base.ExitError{Code: base.ExitSignalled + int(t.by)}
	}
	ended, err := base.StartChild(cmd)
	t.process = cmd.Process
	t.mu.Unlock()
	if err != nil {
		return base.CommandError(t.front.command, err)
	}
	err = <-ended
	t.mu.Lock()
	t.process = nil
	t.mu.Unlock()
	return base.ChildExit(err)
}

// variables returns the command's environment.
func (t *testRun) variables() ([]string, error) {
	l, alloc := t.tied.layout, t.tied.current().Alloc()
	path, file := l.OperatorSocket(alloc.ID), l.OperatorToken(alloc.ID)
	own := map[string]string{
		"NOMAD_ALLOC_ID": alloc.ID, "NOMAD_JOB_ID": alloc.JobID, "NOMAD_GROUP_NAME": alloc.TaskGroup,
		"NOMAD_NAMESPACE": alloc.Namespace,
		"NOMAD_REGION":    *alloc.Job.Region, base.DataDirEnv: string(l.Dir),
	}
	if t.options.As != start.AsOperator {
		own["NOMAD_TASK_NAME"] = t.options.As
		dir := filepath.Join(l.Alloc(alloc.ID), t.options.As)
		path, file = l.TaskSocket(alloc.ID, t.options.As), filepath.Join(dir, "secrets", "nomad_token")
		for _, task := range alloc.GetTaskGroup().Tasks {
			if task.Name == t.options.As && task.Identity != nil && task.Identity.Filepath != "" {
				file = filepath.Join(dir, task.Identity.Filepath)
			}
		}
	}
	token, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("the token of %s: %w", t.options.As, err)
	}
	own["NOMAD_TOKEN"], own["NOMAD_TOKEN_FILE"] = strings.TrimSpace(string(token)), file
	// the agent removes it
	address, _, err := socket.ShortLink(socket.RuntimeDirs(os.Geteuid(), t.environment.Getenv("XDG_RUNTIME_DIR")), path)
	if err != nil {
		return nil, err
	}
	own["NOMAD_ADDR"], own["NOMAD_UNIX_ADDR"] = "unix://"+address, "unix://"+address
	if alloc.AllocatedResources != nil {
		for _, port := range alloc.AllocatedResources.Shared.Ports {
			value := strconv.Itoa(port.Value)
			own["NOMAD_IP_"+port.Label], own["NOMAD_PORT_"+port.Label] = port.HostIP, value
			own["NOMAD_ADDR_"+port.Label] = net.JoinHostPort(port.HostIP, value)
		}
	}
	env := slices.Clone(t.environment.Env)
	for _, name := range slices.Sorted(maps.Keys(own)) {
		env = append(env, name+"="+own[name]) // exec.Cmd takes the last of a name
	}
	return env, nil
}

// onSignal returns a function that ends the wait and the command at the first signal to stop, and kills everything at
// the second.
func (t *testRun) onSignal(giveUp context.CancelCauseFunc) func(syscall.Signal) {
	var latest time.Time
	return func(sig syscall.Signal) {
		if time.Since(latest) < agent.SameStop {
			return
		}
		latest = time.Now()
		t.mu.Lock()
		t.stops++
		t.by = sig
		process, kills := t.process, t.stops > 1
		t.mu.Unlock()
		giveUp(&start.InterruptedError{Signal: sig})
		switch {
		case kills:
			t.tied.end(context.Background(), true)
			sig = syscall.SIGKILL
		case sig == syscall.SIGINT && inForeground(): // it has come to the command, too
			return
		}
		if process != nil {
			_ = process.Signal(sig) // it may have ended
		}
	}
}

// inForeground reports whether a terminal sends Ctrl-C to this process and to its children.
func inForeground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
