package taskrunner

import (
	"context"
	"testing"
	"testing/synctest"

	"taskapi/allocrunner/interfaces"
)

// stopHook keeps the error of the context that its Stop has got.
type stopHook struct {
	called bool
	err    error
}

func (h *stopHook) Name() string { return "stop" }

func (h *stopHook) Stop(ctx context.Context) error {
	h.called, h.err = true, ctx.Err()
	return nil
}

// deathEnds ends the task's context when the task is dead, as an allocation does with its last task.
type deathEnds struct {
	nobody
	r   *Runner
	end context.CancelFunc
}

func (d *deathEnds) TaskChanged(string) {
	if d.r.Wire().State == "dead" {
		d.end()
		d.r.Close()
	}
}

// TestTheLastTaskStopsItsHooks with a context that is not over: what they undo takes one.
func TestTheLastTaskStopsItsHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hook, observer := &stopHook{}, &deathEnds{}
		p := newOneProcess()
		r := newRunner(t, ready{p}, Config{Observer: observer, Hooks: []interfaces.TaskHook{hook}})
		ctx, end := context.WithCancel(t.Context())
		observer.r, observer.end = r, end
		restore(t, r, interfaces.SavedTask{Phase: "running"}, p)
		r.Kill(nil, Graceful)
		r.Run(ctx)
		if !hook.called || hook.err != nil {
			t.Errorf("called: %v, its context: %v", hook.called, hook.err)
		}
	})
}
