package rawexec

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/readiness"
)

// run is one process of a task, run by the allocation's supervisor.
type run struct {
	processes drivers.Supervisor
	status    drivers.ProcessStatus // as it was at its start, or when it was found
	handle    interfaces.Handle
}

var (
	_ drivers.Signaler = (*run)(nil)
	_ drivers.Executor = (*run)(nil)
	_ drivers.Notifier = (*run)(nil)

	_ drivers.ListenerKeeper = (*run)(nil)
)

func (Driver) Start(ctx context.Context, task drivers.Task) (drivers.Run, error) {
	spec, err := specOf(task, nil)
	if err != nil {
		return nil, err
	}
	if f := task.Foreground; f != nil {
		foreground(&spec, f)
	}
	if err := ctx.Err(); err != nil { // a supervisor may start the process even if ctx ends before
		return nil, err
	}
	status, err := task.Processes.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	if task.Limits.Memory == 0 {
		status.Unlimited = cmp.Or(status.Unlimited, "no limit of its memory was set")
	}
	return newRun(task.Processes, status)
}

func newRun(parent drivers.Supervisor, status drivers.ProcessStatus) (drivers.Run, error) {
	handle, err := json.Marshal(status.ID().ProcessRun)
	return &run{parent, status, handle}, err
}

// Recover trusts the supervisor more than the handle: a process may have been started that was never saved.
func (Driver) Recover(_ context.Context, task drivers.Task, handle interfaces.Handle) (drivers.Run, error) {
	var saved drivers.ProcessRun
	_ = json.Unmarshal(handle, &saved) // an unreadable handle belongs to no process
	status, found := task.Processes.Found(task.Task.Name)
	if found && (status.PID != saved.PID || !status.StartedAt.Equal(saved.StartedAt)) {
		return newRun(task.Processes, status)
	}
	if !found && len(handle) == 0 {
		return nil, drivers.ErrNoRun
	}
	if !found {
		status = drivers.ProcessStatus{Task: task.Task.Name, PID: saved.PID, StartedAt: saved.StartedAt}
	}
	return &run{task.Processes, status, handle}, nil
}

func (r *run) Handle() interfaces.Handle { return r.handle }

func (r *run) Inspect(context.Context) (drivers.Status, error) {
	s := drivers.Status{Exit: r.status.Exit, Details: map[string]string{}, Notice: r.status.Notice}
	if r.status.Notice != nil {
		s.Details[readiness.DetailNotifies] = "true"
	}
	for name, why := range map[string]string{"no_cgroup": r.status.NoCgroup, "unlimited": r.status.Unlimited} {
		if why != "" {
			s.Details[name] = why
		}
	}
	return s, nil
}

// gone are the errors of a supervisor that has nothing more to do with the process.
var gone = []error{drivers.ErrNotRunning, drivers.ErrClosed, drivers.ErrReplaced}

func isAny(err error, of ...error) bool {
	return slices.ContainsFunc(of, func(one error) bool { return errors.Is(err, one) })
}

func (r *run) Wait(ctx context.Context) (interfaces.ExitResult, error) {
	result, err := r.processes.Wait(ctx, r.status.Task)
	if isAny(err, append(gone, drivers.ErrLost)...) {
		return interfaces.ExitResult{ExitCode: -1, At: time.Now(), Err: err.Error()}, nil
	}
	return result, err
}

func (r *run) Signal(ctx context.Context, signal syscall.Signal) error {
	return r.processes.Signal(ctx, r.status.ID(), signal)
}

func (r *run) Notice(ctx context.Context, seen uint64) (drivers.Notice, error) {
	return r.processes.Notice(ctx, r.status.ID(), seen)
}

func (r *run) Unlisten(ctx context.Context) error { return r.processes.Unlisten(ctx, r.status.Task) }

// signalTime bounds the sending of a signal, which takes a fraction of a millisecond unless the supervisor itself is
// stopped.
const signalTime = 2 * time.Second

// Stop sends the signal only to the first process. It does not repeat a signal that failed: the first one may still
// arrive, and to many programs a second signal means something else.
func (r *run) Stop(ctx context.Context, signal syscall.Signal, timeout time.Duration) error {
	if signal != syscall.SIGKILL {
		waiting, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		sending, sent := context.WithTimeout(ctx, signalTime)
		_ = r.Signal(sending, signal)
		sent()
		if _, err := r.Wait(waiting); err == nil {
			return nil
		}
		<-waiting.Done() // an error of the supervisor does not mean that the process has ended
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	_, err := r.Destroy(ctx)
	return err
}

func (r *run) Destroy(ctx context.Context) (int, error) {
	leftover, err := r.processes.KillTree(ctx, r.status.ID())
	if isAny(err, gone...) {
		err = nil
	}
	return leftover, err
}

func (r *run) Exec(ctx context.Context, task drivers.Task, program drivers.Program) (drivers.ExecResult, error) {
	spec, err := specOf(task, program.Command)
	if err != nil {
		drivers.CloseFiles(program.Files)
		return drivers.ExecResult{}, execError(err)
	}
	spec.Files, spec.TTY = program.Files, program.TTY
	result, err := r.processes.Exec(ctx, drivers.ExecSpec{Spec: spec, MaxOutput: program.MaxOutput,
		Started: program.Started})
	return result, execError(err)
}

// shortages are the errors of a machine that lacks something. The program is not their cause.
var shortages = []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.ENOSPC}

// execError converts a supervisor's error about a program beside a task into one of Exec's errors.
func execError(err error) error {
	start, isStart := errors.AsType[*drivers.StartError](err)
	config, isConfig := errors.AsType[*drivers.ConfigError](err)
	switch {
	case isAny(err, drivers.ErrTooManyExecs):
		return fmt.Errorf("%w: %d run", interfaces.ErrTooManyExecs, drivers.MaxInteractive)
	case isAny(err, drivers.ErrNotRunning, drivers.ErrLost):
		return fmt.Errorf("%w: %w", interfaces.ErrTaskNotRunning, err)
	case isAny(err, drivers.ErrClosed, drivers.ErrReplaced):
		return fmt.Errorf("%w: %w", interfaces.ErrDetached, err)
	case isConfig:
		return &interfaces.ExecError{Reason: config.Error(), Err: err}
	case isStart && !isAny(err, shortages...):
		return &interfaces.ExecError{Reason: start.Reason, Err: err}
	}
	return err
}

// specOf returns the spec of the task's process or, with a command, of a program beside it.
func specOf(task drivers.Task, command []string) (drivers.Spec, error) {
	c, err := evaluate(task)
	if err != nil {
		return drivers.Spec{}, &drivers.ConfigError{Err: err}
	}
	spec := drivers.Spec{
		Task: task.Task.Name, Args: c.Args, Env: c.scrub(task.Env.List()), Dir: cmp.Or(c.WorkDir, task.Dir.Dir),
		User: task.User, Logs: task.Logs,
		Limits: task.Limits, OOMScoreAdj: c.OOMScoreAdj, NetBindService: task.NetBindService,
	}
	path := c.Command
	if len(command) > 0 {
		path, spec.Args = command[0], command[1:]
	} else if err := readySpec(&spec, task); err != nil {
		return drivers.Spec{}, &drivers.ConfigError{Err: err}
	}
	spec.Path, err = drivers.LookUp(task.Dir.Dir, path, spec.Env)
	if e, ok := errors.AsType[*drivers.StartError](err); ok && len(command) == 0 && errors.Is(err, fs.ErrNotExist) {
		err = &drivers.StartError{Reason: c.splitHint(spec.Env) + e.Reason, Err: e.Err}
	}
	return spec, err
}

// readySpec adds what a task needs to say that it is ready and alive, and the sockets that are kept for it.
func readySpec(spec *drivers.Spec, task drivers.Task) error {
	set, err := readiness.Of(task.Task)
	if err != nil {
		return err
	}
	spec.Notify = set.Notify
	if set.Watchdog > 0 {
		spec.Env = append(spec.Env, fmt.Sprintf("WATCHDOG_USEC=%d", set.Watchdog.Microseconds()))
	}
	for _, p := range set.Listen {
		i := slices.IndexFunc(task.Ports, func(m api.PortMapping) bool { return m.Label == p.Label })
		if i < 0 {
			return fmt.Errorf("meta: %s names %q, and the group has no port with that label", readiness.ListenKey, p.Label)
		}
		l := drivers.Listener{Name: p.Label, Network: "tcp", HostIP: task.Ports[i].HostIP, Port: task.Ports[i].Value}
		if p.UDP {
			l.Network = "udp"
		}
		spec.Listen = append(spec.Listen, l)
	}
	return nil
}

// foreground changes the spec of a task's process for a task in the foreground.
func foreground(spec *drivers.Spec, f *interfaces.Foreground) {
	spec.Path, spec.Args, spec.Dir, spec.Files, spec.TTY = f.Path, f.Args, f.Dir, f.Files, f.TTY
	login := []string{"PATH"}
	if int(spec.User.UID) == os.Geteuid() {
		login = append(login, "HOME", "SHELL", "USER", "LOGNAME")
	}
	spec.Env = slices.DeleteFunc(slices.Clone(spec.Env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains(login, name) && slices.ContainsFunc(f.Env, func(given string) bool {
			return strings.HasPrefix(given, name+"=")
		})
	})
	own := map[string]bool{}
	for _, entry := range spec.Env {
		name, _, _ := strings.Cut(entry, "=")
		own[name] = true
	}
	for _, entry := range f.Env {
		if name, _, ok := strings.Cut(entry, "="); ok && name != "" && !own[name] {
			spec.Env = append(spec.Env, entry)
		}
	}
}
