package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/driver"
)

// start runs the prestart hooks and starts the process beside the task's goroutine, so that a kill can end it.
func (r *Runner) start(ctx context.Context) {
	startCtx, cancel := context.WithCancel(ctx)
	r.cancelStart = cancel
	r.effects.Go(func() {
		defer cancel()
		if failure := r.launch(startCtx); failure != nil {
			r.postFromEffect(*failure)
			return
		}
		r.postFromEffect(started{})
	})
}

// launch takes the steps of a start in order and names the first that fails.
func (r *Runner) launch(ctx context.Context) *startFailed {
	req, err := r.cfg.Starter.Prepare(ctx)
	if err != nil {
		return &startFailed{event: driverFailureEvent(err.Error())}
	}
	req.Lifecycle = r
	env, failed := r.runPrestart(ctx, req)
	if failed != nil {
		return failed
	}
	spec, err := r.cfg.Starter.Spec(ctx, req, env)
	if err != nil {
		return specFailure(err)
	}
	if err := ctx.Err(); err != nil {
		return &startFailed{event: driverFailureEvent("the start was given up")}
	}
	if _, err := r.processes.Start(ctx, spec); err != nil {
		return &startFailed{event: driverFailureEvent(startReason(err))}
	}
	return nil
}

// specFailure tells a configuration that will never do from what another attempt may find otherwise.
func specFailure(err error) *startFailed {
	if config, ok := errors.AsType[*ConfigError](err); ok {
		return &startFailed{event: failedValidationEvent(config.Error()), unrecoverable: true}
	}
	return &startFailed{event: driverFailureEvent(startReason(err))}
}

func startReason(err error) string {
	if start, ok := errors.AsType[*driver.StartError](err); ok {
		return start.Reason
	}
	return err.Error()
}

// runPrestart runs the prestart hooks in order and collects what they add to the environment.
func (r *Runner) runPrestart(ctx context.Context, req *interfaces.TaskPrestartRequest) (map[string]string, *startFailed) {
	env := map[string]string{}
	for _, hook := range r.cfg.Hooks {
		h, ok := hook.(interfaces.TaskPrestartHook)
		if !ok {
			continue
		}
		resp, err := h.Prestart(ctx, req)
		if err != nil {
			return nil, &startFailed{event: setupFailureEvent(fmt.Sprintf("hook %q: %v", h.Name(), err))}
		}
		if resp != nil {
			maps.Copy(env, resp.Env)
		}
	}
	return env, nil
}

// hookContext bounds hooks that run in the task's own goroutine: one that hangs must not keep the task from being killed.
func hookContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, hookTimeout)
}

func (r *Runner) runPoststart(ctx context.Context) {
	ctx, cancel := hookContext(ctx)
	defer cancel()
	for _, hook := range r.cfg.Hooks {
		if h, ok := hook.(interfaces.TaskPoststartHook); ok {
			r.note(h, h.Poststart(ctx))
		}
	}
}

func (r *Runner) runPreKill(ctx context.Context) {
	ctx, cancel := hookContext(ctx)
	defer cancel()
	for _, hook := range r.cfg.Hooks {
		if h, ok := hook.(interfaces.TaskPreKillHook); ok {
			r.note(h, h.PreKilling(ctx))
		}
	}
}

func (r *Runner) runExited(ctx context.Context, result interfaces.ExitResult) {
	ctx, cancel := hookContext(ctx)
	defer cancel()
	for _, hook := range r.cfg.Hooks {
		if h, ok := hook.(interfaces.TaskExitedHook); ok {
			r.note(h, h.Exited(ctx, result))
		}
	}
}

func (r *Runner) runStop(ctx context.Context) {
	ctx, cancel := hookContext(ctx)
	defer cancel()
	for _, hook := range r.cfg.Hooks {
		if h, ok := hook.(interfaces.TaskStopHook); ok {
			r.note(h, h.Stop(ctx))
		}
	}
}

// note logs the failure of a hook that does not decide over the task.
func (r *Runner) note(h interfaces.TaskHook, err error) {
	if err != nil {
		r.logger.Warn("task hook failed", "hook", h.Name(), "error", err)
	}
}
