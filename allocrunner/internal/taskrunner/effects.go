package taskrunner

import (
	"context"
	"errors"
	"syscall"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/processes"
)

// killTreeTimeout is how long killed processes may take to be gone before they are killed again. SIGKILL can't be refused, but a process in
// uninterruptible sleep may take long to die, and the keeper may be stopped itself for a while.
const killTreeTimeout = 10 * time.Second

// retryPause is the time between two attempts at what must not be given up.
const retryPause = time.Second

// signalTimeout bounds the sending of a signal, which takes a fraction of a millisecond.
const signalTimeout = 2 * time.Second

// hookTimeout bounds the hooks that run between a task's events. They write small files and close listeners.
const hookTimeout = 10 * time.Second

// do performs one effect.
func (r *Runner) do(ctx context.Context, act any) {
	switch act := act.(type) {
	case start:
		r.start(ctx)
	case abort:
		if r.cancelStart != nil {
			r.cancelStart()
		}
	case poststart:
		r.poststart(ctx)
	case watch:
		process := r.process()
		r.effects.Go(func() { r.watch(ctx, process) })
	case prekill:
		runHooks(ctx, r, "task_prekill", interfaces.TaskPreKillHook.PreKilling)
	case signal:
		if err := r.send(ctx, act.sig); err != nil {
			r.logger.Debug("kill signal not delivered", "signal", act.sig.String(), "error", err)
		}
	case killTree:
		if r.killing == nil {
			r.killing, r.endKilling = context.WithCancel(ctx)
		}
		pursuit, process := r.killing, r.process()
		r.effects.Go(func() { r.killTree(pursuit, process) })
	case arm:
		r.timer.Reset(act.after)
	case disarm:
		r.timer.Stop()
	case stopHooks: // the death of the last task ends ctx, and its hooks are still to be called
		runHooks(context.WithoutCancel(ctx), r, "task_stop", interfaces.TaskStopHook.Stop)
	}
}

// send sends a signal to the first process. It is bounded in time: the keeper may be stopped itself, and a kill that follows must not
// wait. A signal that timed out is not sent again: it arrives late, and a second one means something else to many programs.
func (r *Runner) send(ctx context.Context, sig syscall.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	return r.processes.Signal(ctx, r.process(), sig)
}

// process names the latest process.
func (r *Runner) process() processes.ProcessID {
	return processes.ProcessID{Task: r.name, Handle: r.record.handle()}
}

func (r *Runner) poststart(ctx context.Context) {
	req, given, ok := r.Launched()
	if !ok {
		return
	}
	runHooks(ctx, r, "task_poststart", func(h interfaces.TaskPoststartHook, ctx context.Context) error {
		return h.Poststart(ctx, &interfaces.TaskPoststartRequest{
			Alloc: r.cfg.Starter.Alloc(), Task: req.Task, Env: r.cfg.Starter.Env(req, given.Env),
		})
	})
}

// watch waits for the process to end, kills what it left behind, and posts its exit.
func (r *Runner) watch(ctx context.Context, process processes.ProcessID) {
	result := r.await(ctx)
	if ctx.Err() != nil {
		return // the runner ends before the process, or at the same time: the supervisor has it
	}
	leftover := r.killTree(ctx, process)
	if ctx.Err() != nil {
		return // as above
	}
	runHooks(ctx, r, "task_exited", func(h interfaces.TaskExitedHook, ctx context.Context) error { return h.Exited(ctx, result) })
	r.postFromEffect(exited{result, leftover})
}

// await waits for the end of the process, until ctx ends. A request that was refused, or got no answer, is no end.
func (r *Runner) await(ctx context.Context) interfaces.ExitResult {
	for first := true; ; first = false {
		result, err := r.processes.Wait(ctx, r.name)
		if err == nil || ctx.Err() != nil {
			return result
		}
		for _, end := range []error{processes.ErrLost, processes.ErrNotRunning, processes.ErrClosed, processes.ErrReplaced} {
			if errors.Is(err, end) {
				return interfaces.ExitResult{ExitCode: -1, At: time.Now(), Err: err.Error()}
			}
		}
		if first {
			r.logger.Warn("it is not known whether the task runs; trying again", "error", err)
		}
		pause(ctx, retryPause)
	}
}

// pause waits, unless ctx ends before.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// postFromEffect posts from a goroutine that Run waits for: it must not block once Run has left its loop.
func (r *Runner) postFromEffect(ev any) {
	select {
	case r.mailbox <- message{event: ev}:
	case <-r.quit:
	}
}

// killTree kills what is left of the process again and again, until nothing is, ctx ends, the task has had another process since, or the
// processes are no longer ours. It returns how many there were besides the first.
func (r *Runner) killTree(ctx context.Context, process processes.ProcessID) int {
	most := 0
	for first := true; ; first = false {
		try, cancel := context.WithTimeout(ctx, killTreeTimeout)
		n, err := r.processes.KillTree(try, process)
		cancel()
		most = max(most, n)
		if err == nil || ctx.Err() != nil || errors.Is(err, processes.ErrNotRunning) || errors.Is(err, processes.ErrClosed) || errors.Is(err, processes.ErrReplaced) {
			return most
		}
		if first {
			r.logger.Warn("processes of the task are not gone yet; killing them again until they are", "error", err)
		}
		pause(ctx, retryPause)
	}
}

// runHooks calls the task's hooks of one kind one after another. Their failures are logged and do not end the task. They are bounded in
// time, since one that hangs must not keep the task from being killed.
func runHooks[H interfaces.TaskHook](ctx context.Context, r *Runner, step string, call func(H, context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, hookTimeout)
	defer cancel()
	for h := range interfaces.Having[H](r.cfg.Hooks) {
		if err := r.cfg.Meter.Call(r.logger, h.Name(), step, func() error { return call(h, ctx) }); err != nil {
			r.logger.Warn("task hook failed", "hook", h.Name(), "step", step, "error", err)
		}
	}
}
