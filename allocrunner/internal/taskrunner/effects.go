package taskrunner

import (
	"context"
	"syscall"
	"time"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/wake"
)

// killTimeout is how long killed processes may take to be gone before they are killed again. SIGKILL can't be refused,
// but a process in uninterruptible sleep may take long to die, and the keeper may be stopped itself for a while.
const killTimeout = 10 * time.Second

// retryPause is the time between two attempts at an action that must not be given up.
const retryPause = time.Second

// signalTimeout bounds the sending of a signal, which takes a fraction of a millisecond.
const signalTimeout = 2 * time.Second

// hookTimeout bounds the hooks that run between a task's events. They write small files and close listeners.
const hookTimeout = 10 * time.Second

// perform performs one effect.
func (r *Runner) perform(ctx context.Context, e effect) {
	switch e := e.(type) {
	case start:
		r.start(ctx)
	case abort:
		if r.cancelStart != nil {
			r.cancelStart()
		}
	case poststart:
		r.poststart(ctx)
	case watch:
		run := r.Latest()
		r.effects.Go(func() { r.watch(ctx, run) })
	case listen:
		run := r.Latest()
		r.effects.Go(func() { r.listen(ctx, run) })
	case guard:
		run := r.Latest()
		r.effects.Go(func() { r.guard(ctx, run, e.interval) })
	case unlisten:
		r.unlisten(context.WithoutCancel(ctx), r.Latest()) // before a later start, which opens them again
	case prekill:
		runHooks(ctx, r, "task_prekill", interfaces.TaskPreKillHook.PreKilling)
	case stop:
		if r.endStop != nil {
			r.endStop()
		}
		ctx, r.endStop = context.WithCancel(ctx)
		run := r.Latest()
		r.effects.Go(func() { r.stop(ctx, run, e) })
	case arm:
		r.timer.Reset(e.after)
	case disarm:
		r.timer.Stop()
	case stopHooks: // the death of the last task ends ctx, and its hooks are still to be called
		runHooks(context.WithoutCancel(ctx), r, "task_stop", interfaces.TaskStopHook.Stop)
	}
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

// unlisten is not repeated when it fails: the sockets are closed with the allocation at the latest.
func (r *Runner) unlisten(ctx context.Context, run drivers.Run) {
	holder, ok := run.(drivers.ListenerKeeper)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, signalTimeout)
	defer cancel()
	if err := holder.Unlisten(ctx); err != nil {
		r.logger.Warn("the task's listening sockets are kept until the allocation ends", "error", err)
	}
}

// watch waits for the run to end, kills what it left behind, and posts its exit. It ends with ctx: the runner ends
// before the run, or at the same time, and the driver has the run.
func (r *Runner) watch(ctx context.Context, run drivers.Run) {
	result, leftover := interfaces.ExitResult{ExitCode: -1, At: time.Now(), Err: drivers.ErrNoRun.Error()}, 0
	if run != nil {
		r.untilDone(ctx, "it is not known whether the task runs; trying again", func() (err error) {
			result, err = run.Wait(ctx)
			return err
		})
		if ctx.Err() != nil {
			return
		}
		r.untilDone(ctx, "processes of the task are not gone yet; killing them again until they are", func() error {
			try, cancel := context.WithTimeout(ctx, killTimeout)
			defer cancel()
			n, err := run.Destroy(try)
			leftover = max(leftover, n)
			return err
		})
	}
	if ctx.Err() != nil {
		return
	}
	runHooks(ctx, r, "task_exited", func(h interfaces.TaskExitedHook, ctx context.Context) error {
		return h.Exited(ctx, result)
	})
	r.postFromEffect(exited{result, leftover})
}

// stop ends the run. If the driver can't stop it, stop kills it again and again until ctx ends.
func (r *Runner) stop(ctx context.Context, run drivers.Run, how stop) {
	if run == nil {
		return
	}
	r.untilDone(ctx, "the task could not be stopped; killing it again until it is", func() error {
		try, cancel := context.WithTimeout(ctx, how.timeout+killTimeout)
		defer cancel()
		err := run.Stop(try, how.signal, how.timeout)
		how = stop{syscall.SIGKILL, 0}
		return err
	})
}

// untilDone tries again and again, until there is no error or ctx ends. The first error is logged with the warning.
func (r *Runner) untilDone(ctx context.Context, warning string, try func() error) {
	for warned := false; ; warned = true {
		err := try()
		if err == nil || ctx.Err() != nil {
			return
		}
		if !warned {
			r.logger.Warn(warning, "error", err)
		}
		if wake.Sleep(ctx, retryPause) != nil {
			return
		}
	}
}

// postFromEffect posts from a goroutine that Run waits for: it must not block once Run has left its loop.
func (r *Runner) postFromEffect(e event) {
	select {
	case r.mailbox <- message{event: e}:
	case <-r.quit:
	}
}

// runHooks calls the task's hooks of one kind one after another. Their failures are logged and do not end the task.
// Their time is bounded, since a hook that hangs must not keep the task from being killed.
func runHooks[H interfaces.TaskHook](ctx context.Context, r *Runner, step string, call func(H, context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, hookTimeout)
	defer cancel()
	for h := range interfaces.Having[H](r.cfg.Hooks) {
		if err := r.cfg.Meter.Call(r.logger, h.Name(), step, func() error { return call(h, ctx) }); err != nil {
			r.logger.Warn("task hook failed", "hook", h.Name(), "step", step, "error", err)
		}
	}
}
