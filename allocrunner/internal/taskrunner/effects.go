package taskrunner

import (
	"context"
	"syscall"
	"time"

	"taskapi/allocrunner/interfaces"
)

// killTreeTimeout bounds the wait for killed processes to be gone: SIGKILL is not refused, but a process in uninterruptible
// sleep may take long to die.
const killTreeTimeout = 10 * time.Second

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
		r.effects.Go(func() { r.watch(ctx) })
	case prekill:
		runHooks(ctx, r, "task_prekill", interfaces.TaskPreKillHook.PreKilling)
	case signal:
		if err := r.send(ctx, act.sig); err != nil {
			r.logger.Debug("kill signal not delivered", "signal", act.sig.String(), "error", err)
		}
	case killTree:
		r.effects.Go(func() { r.killTree(ctx) })
	case arm:
		r.timer.Reset(act.after)
	case disarm:
		r.timer.Stop()
	case over:
		runHooks(ctx, r, "task_stop", interfaces.TaskStopHook.Stop)
	}
}

// send sends a signal to the first process. It is bounded in time: whoever holds the processes may be stopped itself, and a kill that
// follows must be heard.
func (r *Runner) send(ctx context.Context, sig syscall.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	return r.processes.Signal(ctx, r.name, sig)
}

func (r *Runner) poststart(ctx context.Context) {
	req, hookEnv, ok := r.Launched()
	if !ok {
		return
	}
	runHooks(ctx, r, "task_poststart", func(h interfaces.TaskPoststartHook, ctx context.Context) error {
		return h.Poststart(ctx, &interfaces.TaskPoststartRequest{
			Alloc: r.cfg.Starter.Alloc(), Task: req.Task, Env: r.cfg.Starter.Env(req, hookEnv),
		})
	})
}

// watch waits for the process to end and clears away what it left behind, then tells the machine.
func (r *Runner) watch(ctx context.Context) {
	result, err := r.processes.Wait(ctx, r.name)
	if ctx.Err() != nil {
		return // the runner ends before the process, or at the same time: the supervisor has it
	}
	if err != nil {
		result = interfaces.ExitResult{ExitCode: -1, At: time.Now(), Err: err.Error()}
	}
	leftover := r.killTree(ctx)
	if ctx.Err() != nil {
		return // as above
	}
	runHooks(ctx, r, "task_exited", func(h interfaces.TaskExitedHook, ctx context.Context) error { return h.Exited(ctx, result) })
	r.postFromEffect(exited{result, leftover})
}

// postFromEffect posts from a goroutine that Run waits for: it must not block once Run has left its loop.
func (r *Runner) postFromEffect(ev any) {
	select {
	case r.mailbox <- message{event: ev}:
	case <-r.quit:
	}
}

func (r *Runner) killTree(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, killTreeTimeout)
	defer cancel()
	n, err := r.processes.KillTree(ctx, r.name)
	if err != nil {
		r.logger.Warn("processes of the task could not be killed; look for them with ps and kill them by hand", "error", err)
	}
	return n
}

// runHooks calls the task's hooks of one kind in order. Their failures are logged: they do not decide over the task. They are bounded
// in time, since one that hangs must not keep the task from being killed.
func runHooks[H interfaces.TaskHook](ctx context.Context, r *Runner, step string, call func(H, context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, hookTimeout)
	defer cancel()
	for _, hook := range r.cfg.Hooks {
		h, ok := hook.(H)
		if !ok {
			continue
		}
		if err := r.cfg.Meter.Call(r.logger, h.Name(), step, func() error { return call(h, ctx) }); err != nil {
			r.logger.Warn("task hook failed", "hook", h.Name(), "step", step, "error", err)
		}
	}
}
