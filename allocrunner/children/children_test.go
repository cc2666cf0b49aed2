package children_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/children"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/ptr"
	"taskapi/internal/same"
)

// host is a Host that starts nothing.
type host struct {
	sync.Mutex
	started map[string]*api.Job // by the ID of the allocation
	order   []string            // their IDs, in the order of their starts
	running []*api.Allocation
	refuse  error
	said    []string
}

func (h *host) Start(_ context.Context, id, _ string, encoded json.RawMessage) error {
	h.Lock()
	defer h.Unlock()
	job := new(api.Job)
	if err := json.Unmarshal(encoded, job); err != nil || h.refuse != nil {
		return errors.Join(err, h.refuse)
	}
	if h.started[id] == nil {
		h.started[id] = job
		h.order = append(h.order, *job.ID)
	}
	return nil
}

func (h *host) Children(_ context.Context, _ *api.Allocation, ended bool) (all []*api.Allocation, _ error) {
	h.Lock()
	defer h.Unlock()
	if !ended {
		return h.running, nil
	}
	for id, job := range h.started {
		all = append(all, &api.Allocation{ID: id, JobID: *job.ID, Job: job})
	}
	return all, nil
}

func (h *host) Resume(context.Context, *api.Allocation) {}

func (h *host) Say(kind, message string, _ ...string) {
	h.Lock()
	defer h.Unlock()
	h.said = append(h.said, kind+": "+message)
}

// memory is a State in memory.
type memory struct{ saved interfaces.Saved }

func (m *memory) Put(s interfaces.Saved) error {
	m.saved = s
	return nil
}

const allocID = "115ef685-6b9e-3eaf-e74b-6b04f094ebca"

// parent is a job with its place.
type parent struct {
	*host
	*memory
	alloc *api.Allocation
	dir   string
}

func newParent(t *testing.T, job *api.Job) *parent {
	job.ID, job.Name, job.Region, job.Namespace, job.Type = new("p"), new("p"), new("global"), new("default"), new("batch")
	job.TaskGroups = []*api.TaskGroup{{Name: new("g"), Tasks: []*api.Task{{Name: "t"}}}}
	if job.Periodic != nil {
		job.Periodic.Canonicalize()
	}
	return &parent{
		host: &host{started: map[string]*api.Job{}}, memory: &memory{}, dir: filepath.Join(t.TempDir(), "alloc"),
		alloc: &api.Allocation{ID: allocID, JobID: "p", Namespace: "default", TaskGroup: "g", Job: job},
	}
}

// run runs the job's allocation, resumed if it was saved before, and returns its runner with what waits for its end.
func (p *parent) run(t *testing.T) (interfaces.AllocRunner, func() error) {
	t.Helper()
	config := interfaces.Config{Alloc: p.alloc, Dir: p.dir, Logger: slog.New(slog.DiscardHandler), State: p.memory}
	if p.saved.Alloc != nil {
		saved := p.saved
		config.Saved = &saved
	}
	other := func(interfaces.Config) (interfaces.AllocRunner, error) { return nil, errors.New("it is no parent") }
	r := must.Get(children.Factory(other, p.host)(config))(t)
	done := make(chan error, 1)
	go func() { done <- r.Run(t.Context()) }()
	synctest.Wait()
	return r, func() error { return <-done }
}

// sleep lets time pass, and returns when the runner waits again.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// fail makes the host refuse to start children, or not.
func (h *host) fail(err error) {
	h.Lock()
	defer h.Unlock()
	h.refuse = err
}

// children makes the host say that a child runs, or none.
func (h *host) children(running ...*api.Allocation) {
	h.Lock()
	defer h.Unlock()
	h.running = running
}

// stop stops a runner, and waits for its end.
func stop(t *testing.T, r interfaces.AllocRunner, end func() error) {
	t.Helper()
	must.OK(t, errors.Join(r.Stop(t.Context(), interfaces.StopRequest{}), end()))
}

// detach has a runner return, with the job as it is.
func detach(t *testing.T, r interfaces.AllocRunner, end func() error) {
	t.Helper()
	r.Detach()
	same.Error(t, interfaces.ErrDetached, end())
}

// at is the ID of the child of a time after the clock's first.
func at(first time.Time, after time.Duration) string {
	return fmt.Sprintf("p/periodic-%d", first.Add(after).Unix())
}

// TestSchedule starts a child at each time, and shows the next one. The clock of synctest begins at midnight.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, first := newParent(t, &api.Job{Periodic: &api.PeriodicConfig{Spec: new("*/10 * * * *")}}), time.Now()
		r, end := p.run(t)
		if a := r.Alloc(); a.ClientStatus != "running" || a.ClientDescription != "Next launch at 2000-01-01 00:10:00 UTC" ||
			len(a.TaskStates) != 0 {
			t.Errorf("%s, %q, tasks %v", a.ClientStatus, a.ClientDescription, a.TaskStates)
		}
		sleep(25 * time.Minute)
		same.As(t, []string{at(first, 10*time.Minute), at(first, 20*time.Minute)}, p.order, "after 25 minutes")
		for _, job := range p.started {
			if *job.ParentID != "p" || job.Periodic != nil {
				t.Errorf("%+v", job)
			}
		}
		forced, err := r.(interfaces.Parent).Force(t.Context())
		if err != nil || forced.JobID != at(first, 25*time.Minute) {
			t.Errorf("forced %+v, %v", forced, err)
		}
		if _, err := r.(interfaces.Parent).Dispatch(t.Context(), interfaces.Dispatch{}); !errors.Is(err,
			interfaces.ErrNotParameterized) {
			t.Errorf("a dispatch: %v", err)
		}
		if first := p.said[0]; !strings.HasPrefix(first, "Waiting: Next launch at ") {
			t.Errorf("at the start it said %q", first)
		}
		p.children(&api.Allocation{JobID: forced.JobID})
		stop(t, r, end)
		same.As(t, "Children: 1 run on: "+forced.JobID, p.said[len(p.said)-1], "at the end it said")
		if !p.saved.Terminal || p.saved.Alloc.ClientStatus != "complete" {
			t.Errorf("saved %+v", p.saved)
		}
		same.Error(t, interfaces.ErrTerminal, same.Err(r.(interfaces.Parent).Force(t.Context())), "forced after the end")
	})
}

// TestOverlap leaves out a launch while a child runs, if the job says so.
func TestOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, first := newParent(t, &api.Job{Periodic: &api.PeriodicConfig{
			Specs: []string{"*/10 * * * *", "5 * * * *"}, ProhibitOverlap: new(true),
		}}), time.Now()
		r, end := p.run(t)
		sleep(6 * time.Minute)
		p.children(&api.Allocation{JobID: "p/periodic-1"})
		sleep(10 * time.Minute)
		p.children()
		sleep(5 * time.Minute)
		same.As(t, []string{at(first, 5*time.Minute), at(first, 20*time.Minute)}, p.order, "started")
		if skipped := at(first, 10*time.Minute) + ": p/periodic-1 runs still"; !strings.Contains(strings.Join(p.said, "\n"),
			"Skipped: "+skipped) {
			t.Errorf("said %q", p.said)
		}
		stop(t, r, end)
	})
}

// TestMissed: a runner that resumes starts one child for all times that were missed, and none twice.
func TestMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, first := newParent(t, &api.Job{Periodic: &api.PeriodicConfig{Spec: new("*/10 * * * *")}}), time.Now()
		r, end := p.run(t)
		detach(t, r, end)
		sleep(35 * time.Minute)
		r, end = p.run(t)
		detach(t, r, end)
		same.As(t, []string{at(first, 30*time.Minute)}, p.order, "after three were missed")
		r, end = p.run(t)
		sleep(6 * time.Minute)
		same.As(t, []string{at(first, 30*time.Minute), at(first, 40*time.Minute)}, p.order, "then")
		stop(t, r, end)
		r, end = p.run(t) // a stop that is resumed
		if err := end(); err != nil || !r.Terminal() {
			t.Error(err)
		}
	})
}

// TestUpdate: another schedule counts from the update on.
func TestUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, first := newParent(t, &api.Job{Periodic: &api.PeriodicConfig{Spec: new("0 5 * * *")}}), time.Now()
		r, end := p.run(t)
		sleep(35 * time.Minute)
		next := *r.Alloc().Job
		next.Periodic = &api.PeriodicConfig{Spec: new("*/10 * * * *")}
		next.Periodic.Canonicalize()
		must.OK(t, r.Update(t.Context(), &next))
		sleep(6 * time.Minute)
		same.As(t, []string{at(first, 40*time.Minute)}, p.order, "started")
		same.As(t, 1, ptr.Deref(r.Alloc().Job.Version), "version")
		other := next
		other.Periodic = nil
		same.Error(t, interfaces.ErrInvalidJob, r.Update(t.Context(), &other), "into a job that runs")
		next.Periodic = &api.PeriodicConfig{Enabled: new(false), Spec: new("*/10 * * * *")}
		next.Periodic.Canonicalize()
		must.OK(t, r.Update(t.Context(), &next))
		sleep(time.Hour)
		if len(p.order) != 1 {
			t.Errorf("with its schedule off: %q", p.order)
		}
		if _, err := r.(interfaces.Parent).Force(t.Context()); !errors.Is(err, interfaces.ErrNotPeriodic) {
			t.Errorf("forced with its schedule off: %v", err)
		}
		stop(t, r, end)
	})
}

// TestDaylightSaving: a time of each day is in the zone, also when its clocks change.
func TestDaylightSaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sleep(84 * 24 * time.Hour) // to 2000-03-25, a day before summer begins
		p := newParent(t, &api.Job{Periodic: &api.PeriodicConfig{Spec: new("0 12 * * *"), TimeZone: new("Europe/Berlin")}})
		r, end := p.run(t)
		sleep(48 * time.Hour)
		same.As(t, []string{
			fmt.Sprintf("p/periodic-%d", time.Date(2000, 3, 25, 11, 0, 0, 0, time.UTC).Unix()),
			fmt.Sprintf("p/periodic-%d", time.Date(2000, 3, 26, 10, 0, 0, 0, time.UTC).Unix()),
		}, p.order, "started")
		stop(t, r, end)
	})
}

// TestDispatch starts a child for each dispatch that the job takes, and one for all with the same token.
func TestDispatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParent(t, &api.Job{ParameterizedJob: &api.ParameterizedJobConfig{MetaRequired: []string{"k"}}})
		r, end := p.run(t)
		sleep(24 * time.Hour)
		if a := r.Alloc(); a.ClientDescription != "Waits for dispatches" || len(p.order) != 0 {
			t.Errorf("%q, started %q", a.ClientDescription, p.order)
		}
		d := interfaces.Dispatch{Meta: map[string]string{"k": "v"}}
		for range 2 {
			child, err := r.(interfaces.Parent).Dispatch(t.Context(), d)
			if err != nil || child.Known || p.started[child.AllocID].Meta["k"] != "v" {
				t.Errorf("%+v, %v", child, err)
			}
		}
		d.Token = "once"
		first, err := r.(interfaces.Parent).Dispatch(t.Context(), d)
		again, errAgain := r.(interfaces.Parent).Dispatch(t.Context(), d)
		if first.JobID != again.JobID || first.Known || !again.Known || errors.Join(err, errAgain) != nil {
			t.Errorf("%+v, %+v, %v, %v", first, again, err, errAgain)
		}
		if len(p.order) != 3 {
			t.Errorf("started %q", p.order)
		}
		_, err = r.(interfaces.Parent).Dispatch(t.Context(), interfaces.Dispatch{})
		if _, ok := errors.AsType[*interfaces.ChildError](err); !ok {
			t.Errorf("without its meta: %v", err)
		}
		p.fail(errors.New("no room"))
		_, err = r.(interfaces.Parent).Dispatch(t.Context(), interfaces.Dispatch{Meta: d.Meta})
		if failed, ok := errors.AsType[*interfaces.ChildError](err); !ok || !failed.Later ||
			!strings.Contains(failed.Error(), "no room") {
			t.Errorf("a child that can't run now: %v", err)
		}
		p.fail(&interfaces.ChildError{Err: errors.New("refused")})
		_, err = r.(interfaces.Parent).Dispatch(t.Context(), interfaces.Dispatch{Meta: d.Meta})
		if failed, ok := errors.AsType[*interfaces.ChildError](err); !ok || failed.Later {
			t.Errorf("a child that can't run: %v", err)
		}
		for _, err := range []error{r.RestartRunning(t.Context()), r.RestartAll(t.Context()),
			r.Signal(t.Context(), "", "HUP")} {
			same.Error(t, interfaces.ErrOnlyChildren, err, "a request about all tasks")
		}
		p.fail(nil)
		same.Error(t, interfaces.ErrNotPeriodic, same.Err(r.(interfaces.Parent).Force(t.Context())), "forced")
		// A child that can't be noted, on a full disk say, is no fault of the caller, and does not start.
		must.OK(t, os.Rename(p.dir, p.dir+".away"))
		started := len(p.order)
		_, err = r.(interfaces.Parent).Dispatch(t.Context(), interfaces.Dispatch{Meta: d.Meta})
		if !errors.Is(err, interfaces.ErrStateFile) || len(p.order) != started {
			t.Errorf("without a place for its record: %v, started %q", err, p.order)
		}
		must.OK(t, os.Rename(p.dir+".away", p.dir))
		stop(t, r, end)
	})
}

// TestStartCutShort: a child that was accepted is started by the runner that resumes the job.
func TestStartCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParent(t, &api.Job{ParameterizedJob: &api.ParameterizedJobConfig{}})
		r, end := p.run(t)
		detach(t, r, end)
		path := filepath.Join(p.dir, "launches.json")
		const child = "215ef685-6b9e-3eaf-e74b-6b04f094ebca"
		record := `{"since":"2000-01-01T00:00:00Z","starting":{"` + child + `":{"ID":"p/dispatch-1"}}}`
		must.OK(t, os.WriteFile(path, []byte(record), 0o600))
		r, end = p.run(t)
		same.As(t, []string{"p/dispatch-1"}, p.order, "started")
		stop(t, r, end)
		if left, err := os.ReadFile(path); err != nil || strings.Contains(string(left), "starting") {
			t.Errorf("%s, %v", left, err)
		}
		events, err := children.Events(p.dir)
		if err != nil || len(events) != 1 || events[0].Type != "Launched" || events[0].Details["allocation"] != child {
			t.Errorf("events %+v, %v", events, err)
		}
	})
}

// TestEvents: the latest events are kept, also by the runner that resumes the job, and each wakes those who follow.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParent(t, &api.Job{ParameterizedJob: &api.ParameterizedJobConfig{}})
		r, end := p.run(t)
		for i := range 60 {
			if i == 30 {
				detach(t, r, end)
				r, end = p.run(t)
			}
			before := r.Alloc().ModifyIndex
			_, err := r.(interfaces.Parent).Dispatch(t.Context(), interfaces.Dispatch{})
			if must.OK(t, err); r.Alloc().ModifyIndex == before {
				t.Error("a dispatch wakes nobody")
			}
		}
		stop(t, r, end)
		events, err := children.Events(p.dir)
		if err != nil || len(events) != 50 || events[0].Number != 11 || events[49].Number != 60 ||
			events[49].Type != "Launched" {
			t.Errorf("events %+v, %v", events, err)
		}
	})
}

// TestDamagedRecord: a record that can't be read is an error, after which nothing has changed.
func TestDamagedRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParent(t, &api.Job{ParameterizedJob: &api.ParameterizedJobConfig{}})
		r, end := p.run(t)
		detach(t, r, end)
		must.OK(t, os.WriteFile(filepath.Join(p.dir, "launches.json"), []byte("{"), 0o600))
		r, end = p.run(t)
		if err := end(); err == nil || !strings.Contains(err.Error(), "launches.json") || r.Terminal() || p.saved.Terminal {
			t.Errorf("%v, saved %+v", err, p.saved)
		}
	})
}

// TestClockSetBack: after a small step no time comes twice, and after a great one the schedule counts from then on.
func TestClockSetBack(t *testing.T) {
	for name, tc := range map[string]struct {
		back time.Duration
		want []time.Duration
	}{
		"little": {25 * time.Minute, []time.Duration{30 * time.Minute, 40 * time.Minute}},
		"years": {30 * 365 * 24 * time.Hour, []time.Duration{10 * time.Minute, 20 * time.Minute, 30 * time.Minute,
			40 * time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, first := newParent(t, &api.Job{Periodic: &api.PeriodicConfig{Spec: new("*/10 * * * *")}}), time.Now()
				r, end := p.run(t)
				detach(t, r, end)
				record := `{"since":"` + first.Add(tc.back).Format(time.RFC3339) + `"}`
				must.OK(t, os.WriteFile(filepath.Join(p.dir, "launches.json"), []byte(record), 0o600))
				r, end = p.run(t)
				sleep(45 * time.Minute)
				var want []string
				for _, after := range tc.want {
					want = append(want, at(first, after))
				}
				same.As(t, want, p.order, "started")
				stop(t, r, end)
			})
		})
	}
}
