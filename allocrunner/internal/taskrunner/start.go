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

// runHooks calls the task's hooks of one kind in order and logs their failures: they do not decide over the task. They are bounded
// in time, since one that hangs must not keep the task from being killed.
func runHooks[H interfaces.TaskHook](ctx context.Context, r *Runner, call func(H, context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, hookTimeout)
	defer cancel()
	for _, hook := range r.cfg.Hooks {
		h, ok := hook.(H)
		if !ok {
			continue
		}
		if err := call(h, ctx); err != nil {
			r.logger.Warn("task hook failed", "hook", h.Name(), "error", err)
		}
	}
}
