package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/execio"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/allocrunner/internal/processes"
)

// hangUpTime is what a program has between the closing of its files, which on a terminal is a SIGHUP, and SIGKILL: a shell saves its history.
const hangUpTime = time.Second

// defaultTerm is the type of a terminal of which nothing is known, as docker has it.
const defaultTerm = "xterm"

func (r *Runner) Exec(ctx context.Context, req interfaces.ExecRequest) (interfaces.ExecSession, error) {
	session, err := r.exec(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("run a command in task %q: %w", req.Task, execError(err))
	}
	return session, nil
}

func (r *Runner) exec(ctx context.Context, req interfaces.ExecRequest) (*execSession, error) {
	spec, err := r.execSpec(ctx, req)
	if err != nil {
		return nil, err
	}
	files, child, err := execio.Open(req.TTY)
	if err != nil {
		return nil, err
	}
	s := &execSession{files: files, started: make(chan struct{}), done: make(chan struct{})}
	beside := processes.ExecSpec{Spec: spec, Files: child, TTY: req.TTY, Started: func() { close(s.started) }}
	err = r.task(req.Task).Beside(ctx, func(ctx context.Context, parent processes.Supervisor) {
		ctx, s.kill = context.WithCancel(ctx) // not the request's context, whose end is an error of the request
		defer close(s.done)
		defer s.kill()
		defer files.End()
		s.result, s.err = parent.Exec(ctx, beside)
	})
	if err != nil {
		for _, f := range child {
			f.Close()
		}
		return nil, errors.Join(err, files.Close())
	}
	select {
	case <-s.started:
		return s, nil
	case <-s.done:
	}
	select {
	case <-s.started: // and it has ended since
		return s, nil
	default:
		return nil, errors.Join(s.err, files.Close())
	}
}

// execSpec returns the process of a program beside a task, made of what the task's own was.
func (r *Runner) execSpec(ctx context.Context, req interfaces.ExecRequest) (drivers.Spec, error) {
	t := r.task(req.Task)
	if t == nil {
		return drivers.Spec{}, interfaces.ErrTaskNotFound
	}
	if len(req.Command) == 0 {
		return drivers.Spec{}, &interfaces.ExecError{Reason: "command is not present"}
	}
	if err := r.life.awaitSetUp(ctx); err != nil {
		return drivers.Spec{}, err
	}
	if err := t.AwaitRejoined(ctx); err != nil {
		return drivers.Spec{}, err
	}
	start, given, ok := t.Launched()
	if phase := t.State().Phase; !ok || phase == lifecycle.Waiting || phase == lifecycle.Dead {
		return drivers.Spec{}, interfaces.ErrTaskNotRunning
	}
	spec, err := (&starter{r, req.Task}).build(ctx, start, given, req.Command)
	if req.TTY && !slices.ContainsFunc(spec.Env, func(entry string) bool { return strings.HasPrefix(entry, "TERM=") }) {
		term := defaultTerm
		if req.Term != "" {
			term = req.Term
		}
		spec.Env = append(slices.Clip(spec.Env), "TERM="+term)
	}
	return spec, err
}

// shortages are the errors that have nothing to do with what was to be run.
var shortages = []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.ENOSPC}

// execError returns an error of the start of a program as interfaces has it.
func execError(err error) error {
	start, isStart := errors.AsType[*drivers.StartError](err)
	config, isConfig := errors.AsType[*drivers.ConfigError](err)
	switch {
	case errors.Is(err, processes.ErrTooManyExecs):
		return fmt.Errorf("%w: %d run", interfaces.ErrTooManyExecs, processes.MaxInteractive)
	case errors.Is(err, processes.ErrNotRunning), errors.Is(err, processes.ErrClosed), errors.Is(err, processes.ErrLost):
		return fmt.Errorf("%w: %w", interfaces.ErrTaskNotRunning, err)
	case isConfig:
		return &interfaces.ExecError{Reason: config.Error(), Err: err}
	case isStart && !slices.ContainsFunc(shortages, func(lack error) bool { return errors.Is(err, lack) }):
		return &interfaces.ExecError{Reason: start.Reason, Err: err}
	}
	return err
}

// execSession is a program that a task's goroutine waits for.
type execSession struct {
	files         *execio.Files
	kill          context.CancelFunc
	started, done chan struct{}

	result processes.ExecResult // set when done is closed
	err    error
}

var _ interfaces.ExecSession = (*execSession)(nil)

func (s *execSession) Stdin() io.WriteCloser { return s.files.Stdin }
func (s *execSession) Stdout() io.Reader     { return s.files.Stdout }
func (s *execSession) Stderr() io.Reader     { return s.files.Stderr }

func (s *execSession) Resize(rows, columns uint16) error { return s.files.Resize(rows, columns) }

func (s *execSession) Wait() (interfaces.ExitResult, error) {
	<-s.done
	switch {
	case errors.Is(s.err, context.Canceled), errors.Is(s.err, processes.ErrClosed), errors.Is(s.err, processes.ErrReplaced):
		return s.result.Exit, fmt.Errorf("%w: %w", interfaces.ErrDetached, s.err)
	case s.err != nil:
		return s.result.Exit, execError(s.err)
	}
	return s.result.Exit, nil
}

func (s *execSession) Close() error {
	err := s.files.Close()
	patience := time.NewTimer(hangUpTime)
	defer patience.Stop()
	select {
	case <-s.done:
	case <-patience.C:
		s.kill()
		<-s.done
	}
	return err
}
