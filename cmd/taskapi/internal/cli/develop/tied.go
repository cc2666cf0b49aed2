package develop

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/cmd/taskapi/internal/cli/base"
	"taskapi/cmd/taskapi/internal/cli/follow"
	"taskapi/cmd/taskapi/internal/cli/start"
	"taskapi/cmd/taskapi/internal/linewriter"
	"taskapi/internal/wake"
)

// tied is an allocation that ends with this process, and that prints no events.
type tied struct {
	layout      base.Layout
	settings    agent.Settings
	alloc       *api.Allocation
	submission  *api.JobSubmission
	environment base.Environment
	events      io.Writer // nil for nobody
	logs        bool      // log warnings and steps to standard error, which otherwise only the command uses

	foreground *interfaces.Foreground
	refusals   auth.Refusals         // of requests of the tasks
	faults     string                // file of them; empty for none
	started    func()                // called each time that the foreground's process has started
	ending     func(*api.Allocation) // called when the allocation has ended, before it is removed; nil for nobody

	cancel context.CancelFunc // ends the allocation before it has a runner

	mu       sync.Mutex // guards the fields below
	runner   interfaces.AllocRunner
	stopping syscall.Signal // that came before there was a process
}

// run runs the allocation to its end, and removes it.
func (t *tied) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t.mu.Lock()
	t.cancel = cancel
	early := t.stopping != 0
	t.mu.Unlock()
	if early {
		return context.Canceled
	}
	w := t.environment
	if !t.logs {
		w.Stderr = io.Discard
	}
	lock, err := t.layout.LockNew(t.alloc.ID, base.NewLogger(t.logs, w))
	if err != nil {
		return err
	}
	err = t.runLocked(ctx, lock, w)
	if t.ending != nil && t.runner != nil {
		t.ending(t.runner.Alloc())
	}
	if t.runner != nil && t.runner.Terminal() {
		err = errors.Join(err, t.layout.Explain(t.runner.Destroy(context.WithoutCancel(ctx))))
	}
	return errors.Join(err, lock.Close())
}

func (t *tied) runLocked(ctx context.Context, lock agent.Lock, w base.Environment) error {
	if t.events == nil {
		t.events = io.Discard
	}
	log := base.QueuedLog(w)
	defer base.FlushAll(log)
	p := follow.NewPrinter(t.events, t.alloc, false)
	p.Queue = linewriter.New(t.events, func(int) []byte { return nil })
	cfg := start.AgentConfig(t.layout, t.alloc.ID, lock, base.NewLogger(t.logs, w), t.settings, p, log, w)
	cfg.Signals, cfg.Tied, cfg.Foreground, cfg.Faults, cfg.Submission = nil, true, t.foreground, t.faults, t.submission
	factory := cfg.Factory
	cfg.Factory = func(c interfaces.Config) (interfaces.AllocRunner, error) {
		r, err := factory(c)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.runner = r
		return r, err
	}
	cfg.Events, cfg.Refusals = tiedEvents{cfg.Events, t}, &t.refusals
	_, err := agent.New(cfg).Run(ctx, t.alloc)
	if errors.Is(err, agent.ErrReported) {
		err = nil // the task's state says it
	}
	return err
}

// tiedEvents hears when the foreground's process has started.
type tiedEvents struct {
	agent.Events
	tied *tied
}

func (e tiedEvents) TaskEvent(task string, event *api.TaskEvent) {
	e.Events.TaskEvent(task, event)
	t := e.tied
	if event.Type == api.TaskStarted && t.foreground != nil && task == t.foreground.Task && t.started != nil {
		t.started()
	}
}

// startWait is how long a signal waits for a process that is just being started, and signalPause how often it looks for
// one.
const (
	startWait   = time.Second
	signalPause = 5 * time.Millisecond
)

// current returns the runner, nil before there is one.
func (t *tied) current() interfaces.AllocRunner {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.runner
}

// signal sends a signal to the foreground's process. If there is no process, a signal to stop ends the allocation.
func (t *tied) signal(sig syscall.Signal) {
	for since := time.Now(); time.Since(since) < startWait; time.Sleep(signalPause) {
		runner := t.current()
		if runner == nil {
			continue
		}
		err := runner.Signal(context.Background(), t.foreground.Task, unix.SignalName(sig))
		if runner.Terminal() || !errors.Is(err, interfaces.ErrTaskNotRunning) {
			return
		}
	}
	if sig == syscall.SIGINT || sig == syscall.SIGTERM || sig == syscall.SIGHUP || sig == syscall.SIGQUIT {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.stopping = sig
		if t.cancel != nil {
			t.cancel()
		}
	}
}

// until returns the allocation as soon as it is settled. When ctx ends first, it returns the present allocation with
// the cause; nil before the allocation has begun.
func (t *tied) until(ctx context.Context, settled func(*api.Allocation) bool) (*api.Allocation, error) {
	for {
		if runner := t.current(); runner != nil {
			for alloc := runner.Alloc(); ; alloc = runner.Wait(ctx, alloc.ModifyIndex) {
				if settled(alloc) {
					return alloc, nil
				}
				if ctx.Err() != nil {
					return runner.Alloc(), context.Cause(ctx)
				}
			}
		}
		if wake.Sleep(ctx, signalPause) != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// end stops the allocation gracefully, or kills it, and does not wait for it.
func (t *tied) end(ctx context.Context, kill bool) {
	t.mu.Lock()
	runner, cancel := t.runner, t.cancel
	t.mu.Unlock()
	switch {
	case runner != nil && kill:
		runner.Kill()
	case runner != nil && runner.Stop(ctx, interfaces.StopRequest{}) == nil:
	case cancel != nil:
		cancel() // the end of its context stops it, too
	}
}
