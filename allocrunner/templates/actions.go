package templates

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/ptr"
	"taskapi/internal/wake"
)

// The values of change_mode.
const (
	modeSignal  = "signal"
	modeRestart = "restart"
	modeScript  = "script"
)

// The types of the events about scripts and signals.
const (
	hookFailed  = "Task hook failed"
	hookMessage = "Task hook message"
)

// act does what the change modes of written templates say, after a random part of the longest splay. A restart takes
// the place of signals and scripts.
func (m *manager) act(ctx context.Context) error {
	signals := map[string]struct{}{}
	var scripts []*api.ChangeScript
	restart := false
	var splay time.Duration
	for _, t := range m.pending.written() {
		switch ptr.Deref(t.ChangeMode) {
		case modeSignal:
			signals[ptr.Deref(t.ChangeSignal)] = struct{}{}
		case modeRestart:
			restart = true
		case modeScript:
			scripts = append(scripts, t.ChangeScript)
		}
		splay = max(splay, ptr.Deref(t.Splay))
	}
	if !restart && len(signals) == 0 && len(scripts) == 0 {
		return nil
	}
	if splay > 0 {
		if err := wake.Sleep(ctx, rand.N(splay)); err != nil {
			return err
		}
	}
	if m.ending.Load() {
		return nil
	}
	if restart {
		// Without a process, or with an ending one, it is an error, and the action stays pending until the next start.
		if m.req.Lifecycle.Restart(ctx, "Template with change_mode restart re-rendered") == nil {
			m.pending.handOver() // the next process finds the files as they are now
		}
		return ctx.Err()
	}
	for _, name := range slices.Sorted(maps.Keys(signals)) {
		err := m.req.Lifecycle.Signal(ctx, name)
		switch {
		case errors.Is(err, interfaces.ErrTaskNotRunning), ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return &failure{fmt.Sprintf("Template failed to send signals [%s]: %v", name, err)}
		}
	}
	err := m.runScripts(ctx, scripts)
	switch {
	case errors.Is(err, interfaces.ErrTaskNotRunning):
		return nil
	case ctx.Err() == nil:
		m.pending.handOver() // the process knows of the files now
	}
	return err
}

// runFirstScripts runs the scripts with run_on_first_render, once, when the task runs.
func (m *manager) runFirstScripts(ctx context.Context) error {
	err := m.runScripts(ctx, m.pending.firstScripts())
	switch {
	case errors.Is(err, interfaces.ErrTaskNotRunning):
		return nil
	case ctx.Err() == nil:
		m.pending.scriptsRan()
	}
	return err
}

// runScripts runs scripts beside one another, and waits for them. Errors: *failure when one fails with fail_on_error.
func (m *manager) runScripts(ctx context.Context, scripts []*api.ChangeScript) error {
	errs := make([]error, len(scripts))
	var all sync.WaitGroup
	for i, script := range scripts {
		all.Go(func() { errs[i] = m.runScript(ctx, script) })
	}
	all.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	return cmp.Or(errs...)
}

func (m *manager) runScript(ctx context.Context, script *api.ChangeScript) error {
	command := m.req.Env.ReplaceEnv(ptr.Deref(script.Command))
	limited, cancel := context.WithTimeout(ctx, ptr.Deref(script.Timeout))
	defer cancel()
	code, err := m.req.Lifecycle.Exec(limited, append([]string{command}, script.Args...))
	arguments := "[" + strings.Join(script.Args, " ") + "]"
	switch {
	case ctx.Err() != nil:
		return nil
	case errors.Is(err, interfaces.ErrTaskNotRunning):
		return err
	case err != nil:
		m.req.Lifecycle.Event(hookFailed, fmt.Sprintf(
			"Template failed to run script %s with arguments %s on change: %v. Exit code: %d", command, arguments, err, code))
	case code != 0:
		m.req.Lifecycle.Event(hookFailed, fmt.Sprintf(
			"Template ran script %s with arguments %s on change but it exited with code: %d", command, arguments, code))
	default:
		m.req.Lifecycle.Event(hookMessage, fmt.Sprintf(
			"Template successfully ran script %s with arguments: %s. Exit code: 0", command, arguments))
		return nil
	}
	if ptr.Deref(script.FailOnError) {
		return &failure{"Template script failed, task is being killed"}
	}
	return nil
}
