package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"taskapi/allocrunner/interfaces"
)

// hookTimeout bounds each hook that the allocation waits for. Such hooks write small files, close listeners and call a
// registry.
const hookTimeout = 30 * time.Second

// HookStats returns the statistics of the calls of the allocation's and the tasks' hooks.
func (r *Runner) HookStats() []interfaces.HookStat { return r.meter.Stats() }

// eachHook calls the hooks of one kind one after another and joins their errors.
func eachHook[H interfaces.RunnerHook](r *Runner, step string, call func(H) error) error {
	var errs []error
	for h := range interfaces.Having[H](r.hookList) {
		if err := r.meter.Call(r.logger, h.Name(), step, func() error { return call(h) }); err != nil {
			errs = append(errs, fmt.Errorf("%s hook %q: %w", step, h.Name(), err))
		}
	}
	return errors.Join(errs...)
}

// prerun calls the prerun hooks until one fails. A hook's context ends with its call, and when the allocation is to
// stop or to be detached. After a stop, the hooks that are left are called for the end. Errors: interfaces.ErrDetached.
func (r *Runner) prerun(ctx, tasksCtx context.Context) error {
	ctx, release := r.fsm.interruptible(ctx)
	defer release()
	for i, hook := range r.prerunList {
		h, ok := hook.(interfaces.RunnerPrerunHook)
		if !ok {
			continue
		}
		var err error
		if ctx.Err() == nil {
			err = r.meter.Call(r.logger, h.Name(), "prerun", func() error {
				ctx, end := context.WithCancel(ctx)
				defer end()
				return h.Prerun(ctx, r.prerunRequest())
			})
			if err == nil {
				continue
			}
		}
		if ctx.Err() == nil {
			return fmt.Errorf("set up %s: %w", h.Name(), err)
		}
		return r.interrupted(tasksCtx, r.prerunList[i:])
	}
	return nil
}

// interrupted ends the set-up without the prerun hooks that are left: only poststop tasks will start.
func (r *Runner) interrupted(ctx context.Context, left []interfaces.RunnerHook) error {
	switch s := r.fsm.state(); {
	case s.detach:
		return interfaces.ErrDetached
	case !s.stopped: // Run's context has ended
		r.requestStop(interfaces.StopRequest{})
	}
	ctx, end := context.WithTimeout(ctx, hookTimeout)
	defer end()
	for h := range interfaces.Having[interfaces.RunnerEndingHook](left) {
		err := r.meter.Call(r.logger, h.Name(), "ending", func() error { return h.Ending(ctx, r.prerunRequest()) })
		if err != nil {
			r.logger.Warn("a hook failed before the stop, which goes on", "hook", h.Name(), "error", err)
		}
	}
	return nil
}

func (r *Runner) prerunRequest() *interfaces.RunnerPrerunRequest {
	return &interfaces.RunnerPrerunRequest{Alloc: r.Alloc(), Env: r.env(r.Alloc()), Resources: &r.given,
		Restored: r.cfg.Saved != nil}
}

// tryHooks calls the hooks of one kind within hookTimeout. The caller goes on even if some fail.
func tryHooks[H interfaces.RunnerHook](
	ctx context.Context, r *Runner, step, warning string, call func(H, context.Context) error,
) {
	ctx, end := context.WithTimeout(ctx, hookTimeout)
	defer end()
	if err := eachHook(r, step, func(h H) error { return call(h, ctx) }); err != nil {
		r.logger.Warn(warning, "error", err)
	}
}

func (r *Runner) preTaskRestart(ctx context.Context) {
	tryHooks(ctx, r, "pre_task_restart", "a hook failed before the restart of tasks, which goes on",
		interfaces.RunnerTaskRestartHook.PreTaskRestart)
}

func (r *Runner) shutdownHooks() {
	for h := range interfaces.Having[interfaces.ShutdownHook](r.hookList) {
		_ = r.meter.Call(r.logger, h.Name(), "shutdown", func() error { h.Shutdown(); return nil })
	}
	for _, t := range r.tasks {
		t.Shutdown()
	}
}
