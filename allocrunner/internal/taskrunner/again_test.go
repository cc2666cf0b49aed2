package taskrunner

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/internal/same"
)

// frozen is a supervisor that does not answer for a while: every question ends with its context, or is refused.
type frozen struct {
	drivers.Supervisor // nothing else is called

	mu       sync.Mutex
	thawed   chan struct{} // closed when it answers again
	refusals []error       // what the next Waits get at once
	exited   chan struct{} // closed with the process
	kills    int
}

func (f *frozen) Start(context.Context, drivers.Spec) (drivers.ProcessStatus, error) {
	return drivers.ProcessStatus{Task: "t", PID: 1, StartedAt: time.Now()}, nil
}

func (f *frozen) Wait(ctx context.Context, _ string) (interfaces.ExitResult, error) {
	f.mu.Lock()
	var refusal error
	if len(f.refusals) > 0 {
		refusal, f.refusals = f.refusals[0], f.refusals[1:]
	}
	f.mu.Unlock()
	if refusal != nil {
		return interfaces.ExitResult{}, refusal
	}
	select {
	case <-f.exited:
		return interfaces.ExitResult{ExitCode: 137, Signal: 9}, nil
	case <-ctx.Done():
		return interfaces.ExitResult{}, ctx.Err()
	}
}

func (f *frozen) Signal(ctx context.Context, _ drivers.ProcessID, _ syscall.Signal) error {
	return f.answer(ctx)
}

func (f *frozen) KillTree(ctx context.Context, _ drivers.ProcessID) (int, error) {
	if err := f.answer(ctx); err != nil {
		return 0, fmt.Errorf("kill task: %w", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.kills++; f.kills == 1 {
		close(f.exited)
	}
	return 0, nil
}

func (f *frozen) answer(ctx context.Context) error {
	select {
	case <-f.thawed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestAFrozenSupervisor does not get a task out of its end: however long it answers nothing, the task is killed when it
// answers again. Nor is it an end that it refuses a question.
func TestAFrozenSupervisor(t *testing.T) {
	for _, how := range []KillMode{Graceful, AtOnce} {
		synctest.Test(t, func(t *testing.T) {
			f := &frozen{thawed: make(chan struct{}), exited: make(chan struct{}), refusals: []error{
				fmt.Errorf("wait: %w", context.Canceled), fmt.Errorf("wait: %w",
					context.DeadlineExceeded), fmt.Errorf("too many requests"),
			}}
			r := newRunner(t, ready{f}, Config{})
			r.Receive(interfaces.ScheduleRun)
			done := make(chan struct{})
			go func() {
				defer close(done)
				r.Run(t.Context())
			}()
			r.Open()
			time.Sleep(time.Hour) // of the bubble
			if !r.Running() {
				t.Errorf("a task whose supervisor refused questions: %+v", r.Wire())
			}
			r.Kill(nil, how)
			time.Sleep(time.Hour)
			if got := r.State().Phase; got == lifecycle.Dead {
				t.Errorf("the task is %v before its process is gone", got)
			}
			close(f.thawed)
			time.Sleep(time.Minute)
			same.As(t, lifecycle.Dead, r.State().Phase, "the task is")
			r.Close()
			<-done
		})
	}
}
