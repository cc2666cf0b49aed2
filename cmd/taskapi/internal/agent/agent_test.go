package agent

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster/memory"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
)

// fakeRunner runs until it is killed, detached, or has saved a stop.
type fakeRunner struct {
	interfaces.AllocRunner // of which no other method is called
	alloc                  *api.Allocation
	save                   chan struct{} // a stop is saved when it receives; closed for at once
	requested              chan interfaces.StopRequest
	stopped                chan struct{}
	detached               chan struct{}
	once, onceDetached     sync.Once

	mu    sync.Mutex // guards the fields below
	stops []interfaces.StopRequest
	over  bool
	kills int
}

func (r *fakeRunner) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-r.stopped:
	case <-r.detached:
		return interfaces.ErrDetached
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	return nil
}

func (r *fakeRunner) Stop(_ context.Context, how interfaces.StopRequest) error {
	r.requested <- how
	<-r.save
	r.mu.Lock()
	r.stops = append(r.stops, how)
	r.mu.Unlock()
	return nil
}

func (r *fakeRunner) Kill() {
	r.mu.Lock()
	r.kills++
	r.mu.Unlock()
	r.end()
}

func (r *fakeRunner) end() { r.once.Do(func() { close(r.stopped) }) }

func (r *fakeRunner) Detach() { r.onceDetached.Do(func() { close(r.detached) }) }

func (r *fakeRunner) Alloc() *api.Allocation { return r.alloc }

func (r *fakeRunner) Terminal() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.over
}

func (r *fakeRunner) saved() []interfaces.StopRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.stops)
}

// fakeLock is a lock of which nothing is saved.
type fakeLock struct {
	mu        sync.Mutex // guards the fields below
	recreated []*api.Allocation
	finished  int
}

func (*fakeLock) Saved() *interfaces.Saved { return nil }
func (*fakeLock) Unused() bool             { return false }

func (*fakeLock) Life() string                { return "life" }
func (*fakeLock) Previous() *interfaces.Saved { return nil }
func (*fakeLock) State() interfaces.State     { return nil }
func (*fakeLock) TryRecreate() error          { return nil }

func (l *fakeLock) Recreate(next *api.Allocation, _ bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recreated = append(l.recreated, next)
	return nil
}

func (l *fakeLock) FinishReplacement() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finished++
	return nil
}

// noEvents prints nothing.
type noEvents struct{}

func (noEvents) TaskEvent(string, *api.TaskEvent)     {}
func (noEvents) AllocEvent(string, string, ...string) {}
func (noEvents) Announce(string, *api.Allocation)     {}
func (noEvents) Ended(*api.Allocation, string)        {}
func (noEvents) Fit(*api.Allocation)                  {}
func (noEvents) Flush()                               {}

// atWork is an agent with runners that are made to order.
type atWork struct {
	*Agent
	lock    *fakeLock
	runners chan *fakeRunner // each as it is made
	over    chan bool        // what Run returns
}

// newAllocationOf returns an allocation by its name.
func newAllocationOf(name string) *api.Allocation {
	group, job := "g", "job"
	return &api.Allocation{
		ID: "id", Name: name, JobID: job, TaskGroup: group,
		Job: &api.Job{ID: &job, TaskGroups: []*api.TaskGroup{{Name: &group}}},
	}
}

// agentAtWork runs an agent, with requests from before its start.
func agentAtWork(t *testing.T, before func(*Config)) *atWork {
	t.Helper()
	w := &atWork{lock: &fakeLock{}, runners: make(chan *fakeRunner, 4), over: make(chan bool, 1)}
	cfg := Config{
		Settings: DefaultSettings(), Lock: w.lock, Events: noEvents{}, Logger: slog.New(slog.DiscardHandler),
		NoAPI: true, Shared: true,
		Cluster: memory.New(),
		Factory: func(c interfaces.Config) (interfaces.AllocRunner, error) {
			r := &fakeRunner{alloc: c.Alloc, save: make(chan struct{}), requested: make(chan interfaces.StopRequest, 8),
				stopped: make(chan struct{}), detached: make(chan struct{})}
			w.runners <- r
			return r, nil
		},
	}
	if before != nil {
		before(&cfg)
	}
	w.Agent = New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		over, err := w.Run(ctx, newAllocationOf("first"))
		if err != nil {
			t.Error(err)
		}
		w.over <- over
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return w
}

// untilRunning waits for the agent to have a runner at work.
func (w *atWork) untilRunning() *fakeRunner {
	r := <-w.runners
	for w.present().phase != running {
		runtime.Gosched()
	}
	return r
}

// TestAKillPassesAStop that hangs, because the disk does.
func TestAKillPassesAStop(t *testing.T) {
	t.Parallel()
	w := agentAtWork(t, nil)
	r := w.untilRunning()
	var stopping sync.WaitGroup
	stopping.Go(func() { _ = w.stop(t.Context(), interfaces.StopRequest{}, func() {}) })
	<-r.requested
	w.kill()
	if over := <-w.over; !over || r.kills != 1 || len(r.saved()) != 0 {
		t.Errorf("over %v after %d kills, with %v saved", over, r.kills, r.saved())
	}
	close(r.save)
	stopping.Wait()
}

// TestTheLatestStopStands: one that waits for another to be saved is not undone by it.
func TestTheLatestStopStands(t *testing.T) {
	t.Parallel()
	w := agentAtWork(t, nil)
	r := w.untilRunning()
	var stopping sync.WaitGroup
	stop := func(how interfaces.StopRequest) {
		stopping.Go(func() { _ = w.stop(t.Context(), how, func() {}) })
	}
	stop(interfaces.StopRequest{})
	<-r.requested
	stop(sooner)
	for w.present().how != sooner {
		runtime.Gosched()
	}
	close(r.save)
	stopping.Wait()
	if stops := r.saved(); len(stops) < 2 || stops[len(stops)-1] != sooner {
		t.Errorf("saved %+v, want the latest request last", stops)
	}
	r.end()
	if over := <-w.over; !over || w.lock.finished != 1 {
		t.Errorf("over %v, finished %d times", over, w.lock.finished)
	}
}

// TestAReplacementBegins when what it replaces has ended, and a stop is the end of it.
func TestAReplacementBegins(t *testing.T) {
	t.Parallel()
	w := agentAtWork(t, nil)
	r := w.untilRunning()
	close(r.save)
	next := newAllocationOf("next")
	text := &api.JobSubmission{Source: "next"}
	must.OK(t, w.replace(t.Context(), next, true, text, nil))
	if present := w.present().text; present != nil {
		t.Errorf("what runs was made from %+v, want what it was made from, which is not known", present)
	}
	if stops := r.saved(); len(stops) != 1 || stops[0].ReplacedBy != next {
		t.Errorf("saved %+v, want a stop for a replacement", stops)
	}
	r.end()
	second := w.untilRunning()
	if second.alloc != next || len(w.lock.recreated) != 1 || w.lock.recreated[0] != next {
		t.Errorf("began %+v, recreated %+v", second.alloc, w.lock.recreated)
	}
	if present := w.present().text; present != text {
		t.Errorf("what follows was made from %+v, want %+v", present, text)
	}
	close(second.save)
	if err := w.stop(t.Context(), interfaces.StopRequest{}, func() {}); err != nil {
		t.Error(err)
	}
	second.end()
	if over := <-w.over; !over || w.lock.finished != 1 || len(w.lock.recreated) != 1 {
		t.Errorf("over %v, finished %d times, recreated %d times", over, w.lock.finished, len(w.lock.recreated))
	}
}

// TestRequestsBeforeTheRunner are passed on to it.
func TestRequestsBeforeTheRunner(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		before func(*Config)
		want   interfaces.StopRequest
		kills  int
	}{
		{"a stop", func(c *Config) { c.Stop = &sooner }, sooner, 0},
		{"a stop and a kill", func(c *Config) { c.Stop, c.Kill = &gracefully, true }, gracefully, 1},
	} {
		w := agentAtWork(t, tc.before)
		r := <-w.runners
		if how := <-r.requested; how != tc.want {
			t.Errorf("%s: the runner is to stop by %+v, want %+v", tc.name, how, tc.want)
		}
		close(r.save)
		r.end()
		if over := <-w.over; !over || r.kills != tc.kills {
			t.Errorf("%s: over %v, %d kills", tc.name, over, r.kills)
		}
	}
}

// TestADetachedAgent returns with the allocation as it is, and accepts no replacement before.
func TestADetachedAgent(t *testing.T) {
	t.Parallel()
	w := agentAtWork(t, nil)
	r := w.untilRunning()
	w.detach()
	if err := w.replace(t.Context(), newAllocationOf("next"), true, nil, nil); !errors.Is(err, interfaces.ErrTerminal) {
		t.Errorf("a replacement: %v, want ErrTerminal", err)
	}
	if over := <-w.over; over || len(r.saved()) > 0 || r.kills > 0 || w.lock.finished > 0 {
		t.Errorf("over %v, %v saved, %d kills, finished %d times", over, r.saved(), r.kills, w.lock.finished)
	}
}
