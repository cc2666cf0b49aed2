package processes

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/logs"
	"taskapi/allocrunner/internal/proctree"
)

// maxExecs is how many programs run beside tasks at a time: script checks take milliseconds and come every few seconds,
// so a hundred of them seldom wait, and their output can't take more than maxExecs times drivers.MaxExecOutput.
const maxExecs = 16

// execution is a program that runs, or is about to run, beside a task's process.
type execution struct {
	number  uint64
	owner   *process                // the task's
	end     context.CancelCauseFunc // kills it
	started chan struct{}           // closed when tree is known, or nothing was started
	done    chan struct{}           // closed when nothing of it is left
	tree    *proctree.Tree          // nil before it runs; guarded by Local.mu
}

func (l *Local) Exec(ctx context.Context, spec drivers.ExecSpec) (drivers.ExecResult, error) {
	defer drivers.CloseFiles(spec.Files)
	result, err := l.exec(ctx, spec)
	if err != nil {
		return result, fmt.Errorf("run %q beside task %q: %w", spec.Path, spec.Task, err)
	}
	return result, nil
}

func (l *Local) exec(ctx context.Context, spec drivers.ExecSpec) (drivers.ExecResult, error) {
	if spec.MaxOutput < 0 || spec.MaxOutput > drivers.MaxExecOutput {
		reason := fmt.Sprintf("%d bytes of output are to be kept: it must be from 0 to %d", spec.MaxOutput,
			drivers.MaxExecOutput)
		return drivers.ExecResult{}, &drivers.StartError{Reason: reason, Err: unix.EINVAL}
	}
	if err := checkSpec(spec.Spec); err != nil {
		return drivers.ExecResult{}, err
	}
	free, err := l.acquireExec(ctx, len(spec.Files) > 0)
	if err != nil {
		return drivers.ExecResult{}, err
	}
	defer free()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	e, err := l.admit(spec.Task, end)
	if err != nil {
		return drivers.ExecResult{}, err
	}
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.execs, e)
		close(e.done)
	}()
	if ctx.Err() != nil {
		return drivers.ExecResult{}, context.Cause(ctx)
	}
	out := &head{most: spec.MaxOutput}
	p, err := l.launchExec(ctx, e, spec, out)
	close(e.started)
	if err != nil {
		return drivers.ExecResult{}, err
	}
	if spec.Started != nil && len(spec.Files) > 0 {
		spec.Started()
	}
	err = l.finish(ctx, p)
	result := drivers.ExecResult{Output: out.kept, Truncated: out.more}
	if !p.running() {
		result.Exit = p.exit
	}
	return result, err
}

// acquireExec waits until another program may run. An interactive program does not wait: it is refused instead.
func (l *Local) acquireExec(ctx context.Context, interactive bool) (free func(), err error) {
	if interactive {
		select {
		case l.ttys <- struct{}{}:
			return func() { <-l.ttys }, nil
		default:
			return nil, fmt.Errorf("%w: %d run", drivers.ErrTooManyExecs, drivers.MaxInteractive)
		}
	}
	select {
	case l.execLimit <- struct{}{}:
		return func() { <-l.execLimit }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// admit registers an execution, so that killing the task kills it.
func (l *Local) admit(task string, end context.CancelCauseFunc) (*execution, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	owner := l.procs[task]
	switch {
	case l.closed:
		return nil, drivers.ErrClosed
	case owner == nil || owner.ending || !owner.running():
		return nil, drivers.ErrNotRunning
	}
	l.execCount++
	e := &execution{number: l.execCount, owner: owner, end: end, started: make(chan struct{}),
		done: make(chan struct{})}
	l.execs[e] = true
	return e, nil
}

// launchExec starts the program. Its cgroup lies in the task's, so that it can be killed alone and goes with the task.
func (l *Local) launchExec(ctx context.Context, e *execution, spec drivers.ExecSpec, out logs.Sink) (*process, error) {
	p := &process{task: spec.Task, tty: spec.TTY}
	var err error
	files := spec.Files
	switch {
	case len(files) == 0:
		files, err = p.openFiles(spec.User, out)
	case spec.TTY:
		err = giveTo(files[0], spec.User)
	default:
		err = giveAll(files, spec.User)
	}
	defer drivers.CloseFiles(files) // only the program keeps them, so that the other ends notice when it closes one
	if err != nil {
		p.abandon()
		return nil, err
	}
	p.tree = e.owner.tree.ExecChild("exec." + strconv.FormatUint(e.number, 10))
	err = l.launch(ctx, p, spec.Spec, files, nil, func() {
		l.mu.Lock()
		e.tree = p.tree
		l.mu.Unlock()
		l.wg.Go(p.wait)
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

// giveAll gives the files that are pipes to the user.
func giveAll(files []*os.File, user interfaces.User) error {
	for _, f := range files {
		info, err := f.Stat()
		if err != nil {
			return &drivers.StartError{Reason: fmt.Sprintf("the program's files: %v", err), Err: err}
		}
		if info.Mode()&os.ModeNamedPipe == 0 {
			continue
		}
		if err := giveTo(f, user); err != nil {
			return err
		}
	}
	return nil
}

// finish waits for the end of the program or of ctx, kills the rest of its tree and takes the last of its output.
func (l *Local) finish(ctx context.Context, p *process) error {
	select {
	case <-p.tree.Ended():
	case <-ctx.Done():
	}
	var cut error
	// or the program was killed together with ctx
	if p.running() || ctx.Err() != nil && p.exit.Signal == int(unix.SIGKILL) {
		cut = context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	if err := p.tree.Kill(ctx, proctree.Found{}, nil); err != nil {
		l.cfg.Logger.Warn("a program that ran beside the task can't be killed", "task", p.task, "error", err)
	}
	p.tree.Remove()
	p.abandon() // no known process writes any more
	return cut
}

// endExecs ends the programs beside p, and lets no others begin.
func (l *Local) endExecs(p *process) []*execution {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.ending = true
	var ended []*execution
	for e := range l.execs {
		if e.owner == p {
			e.end(drivers.ErrNotRunning)
			ended = append(ended, e)
		}
	}
	return ended
}

// execTrees returns the trees of all programs that run beside tasks.
func (l *Local) execTrees() []*proctree.Tree {
	l.mu.Lock()
	defer l.mu.Unlock()
	var trees []*proctree.Tree
	for e := range l.execs {
		if e.tree != nil {
			trees = append(trees, e.tree)
		}
	}
	return trees
}

// head is a logs.Sink that keeps the first bytes.
type head struct {
	most int
	kept []byte
	more bool
}

func (h *head) Write(p []byte) {
	n := min(len(p), h.most-len(h.kept))
	h.kept = append(h.kept, p[:n]...)
	h.more = h.more || n < len(p)
}

func (*head) Behind() bool { return false }
func (*head) Retry()       {}
func (*head) Close() error { return nil }
