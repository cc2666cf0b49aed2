package taskrunner

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
)

// start runs the prestart hooks and starts the process beside the task's goroutine, so that a kill can end it.
func (r *Runner) start(ctx context.Context) {
	startCtx, cancel := context.WithCancel(ctx)
	processCtx, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	r.cancelStart = func() { cancel(); giveUp() }
	r.effects.Go(func() {
		defer giveUp()
		defer cancel()
		defer context.AfterFunc(ctx, func() { time.AfterFunc(startGrace, giveUp) })()
		r.postFromEffect(r.launch(startCtx, processCtx))
	})
}

// startGrace is how long the start of a process goes on when this runner ends. A start takes milliseconds, unless a
// file system hangs. If the process were killed just as it executes the program, the task would have a run that was
// never saved.
const startGrace = time.Second

// launch takes the steps of a start and returns started, or the startFailed of the first step that fails. The last
// step, starting the process, ends with processCtx.
func (r *Runner) launch(ctx, processCtx context.Context) event {
	req, err := r.cfg.Starter.Prepare(ctx)
	if err != nil {
		return startFailed{event: driverFailureEvent(err.Error())}
	}
	given, err := r.runPrestart(ctx, req)
	if err != nil {
		return startFailed{event: hookFailureEvent(err)}
	}
	err = r.cfg.Starter.Await(ctx)
	if ctx.Err() != nil {
		return startFailed{event: driverFailureEvent("the start was given up")}
	}
	if err != nil {
		return startFailed{event: driverFailureEvent(err.Error()), unrecoverable: true}
	}
	run, err := r.cfg.Drivers.Start(processCtx, r.cfg.Starter.DriverTask(req, given))
	if err != nil {
		return driverFailure(err)
	}
	status, err := run.Inspect(processCtx)
	if err != nil {
		r.logger.Warn("the driver can't say how the task has started", "error", err)
	}
	return started{run, status.Details, status.Notice != nil}
}

// driverFailure returns the failure of a start. It says whether another attempt may succeed.
func driverFailure(err error) startFailed {
	if config, ok := errors.AsType[*drivers.ConfigError](err); ok {
		return startFailed{event: failedValidationEvent(config.Error()), unrecoverable: true}
	}
	reason := err.Error()
	if start, ok := errors.AsType[*drivers.StartError](err); ok {
		reason = start.Reason
	}
	// A system call that a file system refuses, such as with ENOTSUP, is an errors.ErrUnsupported, too.
	_, isErrno := errors.AsType[syscall.Errno](err)
	return startFailed{event: driverFailureEvent(reason),
		unrecoverable: errors.Is(err, errors.ErrUnsupported) && !isErrno}
}

// runPrestart runs the prestart hooks one after another, except those that are done, and merges their responses. A
// hook's context ends with its call. Errors: those of the first hook that fails.
func (r *Runner) runPrestart(
	ctx context.Context, req *interfaces.TaskPrestartRequest,
) (given *interfaces.TaskPrestartResponse, err error) {
	req.Lifecycle = r
	given = &interfaces.TaskPrestartResponse{}
	for h := range interfaces.Having[interfaces.TaskPrestartHook](r.cfg.Hooks) {
		resp := r.record.hookDone(h.Name())
		if resp == nil {
			if resp, err = r.prestart(ctx, h, req, given.Env); err != nil {
				return nil, fmt.Errorf("hook %q: %w", h.Name(), err)
			}
		}
		given.Add(resp)
	}
	kept := *req
	kept.Alloc = nil // every start has a version of its own, which would stay in memory
	r.mu.Lock()
	r.last = launched{&kept, given}
	r.mu.Unlock()
	return given, nil
}

// prestart calls one hook with its own request.
func (r *Runner) prestart(
	ctx context.Context, h interfaces.TaskPrestartHook, shared *interfaces.TaskPrestartRequest, env map[string]string,
) (resp *interfaces.TaskPrestartResponse, err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	req := *shared
	req.Env = r.cfg.Starter.Env(shared, env)
	req.Kept = r.record.hookData(h.Name())
	req.Keep = func(kept map[string]string) {
		r.record.saveHookData(h.Name(), kept)
		r.cfg.Observer.TaskRecorded(r.name)
	}
	req.Sync = func() error { return r.cfg.Observer.Save(r.name) }
	err = r.cfg.Meter.Call(r.logger, h.Name(), "task_prestart", func() (err error) {
		resp, err = h.Prestart(ctx, &req)
		return err
	})
	if err == nil && resp != nil && resp.Done {
		err = r.record.setHookDone(h.Name(), resp)
		r.cfg.Observer.TaskRecorded(r.name)
	}
	return resp, err
}
