package allocrunner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/execio"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/internal/slice"
)

// hangUpTime is the time between the closing of a program's files (on a terminal a SIGHUP) and SIGKILL. A shell saves
// its history in it.
const hangUpTime = time.Second

// defaultTerm is the type of a terminal whose type is unknown, as in docker.
const defaultTerm = "xterm"

func (r *Runner) Exec(ctx context.Context, req interfaces.ExecRequest) (_ interfaces.ExecSession, err error) {
	defer wrap(&err, "run a command in task %q", req.Task)
	task, err := r.execTask(ctx, req)
	if err != nil {
		return nil, err
	}
	files, child, err := execio.Open(req.TTY)
	if err != nil {
		return nil, err
	}
	s := &execSession{files: files, started: make(chan struct{}), done: make(chan struct{})}
	command := req.Command
	if req.Interpolate {
		command = slice.Map(command, task.Env.ReplaceEnv)
	}
	program := drivers.Program{Command: command, Files: child, TTY: req.TTY, Started: func() { close(s.started) }}
	err = r.task(req.Task).Beside(ctx, func(ctx context.Context, run drivers.Run) {
		ctx, s.kill = context.WithCancel(ctx) // not the request's context, whose end is an error of the request
		defer close(s.done)
		defer s.kill()
		defer files.End()
		if beside, ok := run.(drivers.Executor); ok {
			s.result, s.err = beside.Exec(ctx, task, program)
			return
		}
		closeAll(child)
		s.err = fmt.Errorf("the driver %q runs no other programs: %w", task.Task.Driver, interfaces.ErrNotSupported)
	})
	if err != nil {
		closeAll(child)
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
	}
	if errors.Is(s.err, interfaces.ErrDetached) {
		s.err = interfaces.ErrTaskNotRunning // the caller has no session that could be detached
	}
	return nil, errors.Join(s.err, files.Close())
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// execTask returns the task for its driver, as it was when it was started, to run a program beside it.
func (r *Runner) execTask(ctx context.Context, req interfaces.ExecRequest) (none drivers.Task, err error) {
	t := r.task(req.Task)
	if t == nil {
		return none, interfaces.ErrTaskNotFound
	}
	if len(req.Command) == 0 {
		return none, &interfaces.ExecError{Reason: "command is not present"}
	}
	if err := r.fsm.awaitSetUp(ctx); err != nil {
		return none, err
	}
	if err := t.AwaitRejoined(ctx); err != nil {
		return none, err
	}
	start, given, ok := t.LaunchedBeside()
	if phase := t.State().Phase; !ok || phase == lifecycle.Waiting || phase == lifecycle.Dead {
		return none, interfaces.ErrTaskNotRunning
	}
	task := (&starter{r, req.Task}).DriverTask(start, given)
	if req.TTY && !slices.ContainsFunc(task.Env.List(), func(entry string) bool {
		return strings.HasPrefix(entry, "TERM=")
	}) {
		task.Env = task.Env.With(map[string]string{"TERM": cmp.Or(req.Term, defaultTerm)})
	}
	return task, nil
}

// execSession is a program that a task's goroutine waits for.
type execSession struct {
	files         *execio.Files
	kill          context.CancelFunc
	started, done chan struct{}

	result drivers.ExecResult // set when done is closed
	err    error
}

var _ interfaces.ExecSession = (*execSession)(nil)

func (s *execSession) Stdin() io.WriteCloser { return s.files.Stdin }
func (s *execSession) Stdout() io.Reader     { return s.files.Stdout }
func (s *execSession) Stderr() io.Reader     { return s.files.Stderr }

func (s *execSession) Resize(rows, columns uint16) error { return s.files.Resize(rows, columns) }

func (s *execSession) Wait() (interfaces.ExitResult, error) {
	<-s.done
	if errors.Is(s.err, context.Canceled) {
		return s.result.Exit, fmt.Errorf("%w: %w", interfaces.ErrDetached, s.err)
	}
	return s.result.Exit, s.err
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
