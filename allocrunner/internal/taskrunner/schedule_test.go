package taskrunner

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// newScheduled returns a runner of a task that runs from 00:10 to 00:20. The clock of synctest begins at midnight.
func newScheduled(t *testing.T, p *oneProcess) *Runner {
	t.Helper()
	r := newRunner(t, ready{p}, Config{})
	task := testTask()
	task.RestartPolicy = &api.RestartPolicy{}
	task.Schedule = &api.TaskSchedule{Cron: &api.TaskScheduleCron{Start: "10 0 * * * *", End: "20 0", Timezone: "UTC"}}
	var err error
	if r.rules, err = rulesOf(task, "service"); err != nil {
		t.Fatal(err)
	}
	r.rules.now = time.Now()
	r.state.outside = r.rules.outsideNow()
	return r
}

// TestSchedule runs a task in its times alone, and an operator's word holds also for another runner.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newOneProcess()
		r := newScheduled(t, p)
		r.Receive(interfaces.ScheduleRun)
		go r.Run(t.Context())
		r.Open()
		starts := 0
		at := func(after time.Duration, phase string, started int, says interfaces.ScheduleState) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			for len(p.starts) > 0 {
				<-p.starts
				starts++
			}
			if got := r.Saved().Phase; got != phase || starts != started || r.PauseState() != says {
				t.Errorf("at %s: phase %s, %d starts, %q; want %s, %d, %q", time.Now().UTC().Format(time.TimeOnly), got, starts,
					r.PauseState(), phase, started, says)
			}
			if shown := interfaces.ShownSchedule(r.Wire()); shown != says {
				t.Errorf("at %s the events say %q, want %q", time.Now().UTC().Format(time.TimeOnly), shown, says)
			}
		}
		set := func(to interfaces.ScheduleState) {
			t.Helper()
			if err := r.SetPauseState(t.Context(), to); err != nil {
				t.Error(err)
			}
		}
		at(10*time.Minute-time.Second, "paused", 0, interfaces.SchedulePause)
		at(2*time.Second, "running", 1, interfaces.ScheduleRun)
		at(10*time.Minute, "paused", 1, interfaces.SchedulePause)
		at(24*time.Hour-5*time.Minute, "running", 2, interfaces.ScheduleRun)
		set(interfaces.ScheduleForcedPause)
		at(time.Second, "paused", 2, interfaces.ScheduleForcedPause)
		same.Error(t, interfaces.ErrTaskNotRunning, r.Restart(t.Context(), "why"), "a restart of a paused task")
		at(24*time.Hour, "paused", 2, interfaces.ScheduleForcedPause)

		// Another runner goes on from what is saved.
		saved := r.Saved()
		r.Close()
		r = newScheduled(t, p)
		restore(t, r, saved, p)
		go r.Run(t.Context())
		at(time.Hour, "paused", 2, interfaces.ScheduleForcedPause)
		set(interfaces.ScheduleRun)
		at(time.Second, "paused", 2, interfaces.SchedulePause)
		set(interfaces.ScheduleForcedRun)
		at(time.Second, "running", 3, interfaces.ScheduleForcedRun)
		at(24*time.Hour, "running", 3, interfaces.ScheduleForcedRun)

		// A task that ran when its runner was killed is stopped by one that begins outside of its times.
		set(interfaces.ScheduleRun)
		at(23*time.Hour, "running", 4, interfaces.ScheduleRun)
		saved = r.Saved()
		r.Close()
		time.Sleep(10 * time.Minute)
		r = newScheduled(t, p)
		restore(t, r, saved, p)
		go r.Run(t.Context())
		at(time.Second, "paused", 4, interfaces.SchedulePause)
		if restarts := r.Wire().Restarts; restarts != 0 || r.Wire().Failed {
			t.Errorf("%d restarts, failed: %v", restarts, r.Wire().Failed)
		}
		r.Kill(nil, Graceful)
		synctest.Wait()
		if r.Wire().State != "dead" {
			t.Errorf("a killed task that was paused is %s", r.Wire().State)
		}
		r.Close()
		synctest.Wait()
	})
}

// unsaved is an Observer that can't save.
type unsaved struct{ nobody }

func (unsaved) Save(string) error { return errors.New("no space left on device") }

// TestStopTask stops a task without a schedule: it stays so under another runner, is shown so after any number of
// events, and starts when an operator says so.
func TestStopTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newOneProcess()
		r := newRunner(t, ready{p}, Config{})
		r.Receive(interfaces.ScheduleRun)
		go r.Run(t.Context())
		r.Open()
		<-p.starts
		must.OK(t, r.SetPauseState(t.Context(), interfaces.ScheduleForcedPause))
		synctest.Wait()
		for range 2 {
			for i := range 2 * maxEvents {
				r.Event("Template", fmt.Sprint(i))
			}
			time.Sleep(24 * time.Hour)
			synctest.Wait()
			if got := r.Saved().Phase; got != "paused" || len(p.starts) > 0 {
				t.Fatalf("a stopped task: phase %s, %d starts", got, len(p.starts))
			}
			if events := r.Wire().Events; len(events) != maxEvents {
				t.Errorf("%d events are kept", len(events))
			}
			same.As(t, interfaces.ScheduleForcedPause, interfaces.ShownSchedule(r.Wire()), "the events say")
			if is := r.State(); is.Phase != lifecycle.Pending || !is.Stopped {
				t.Errorf("in its group: %+v", is)
			}
			same.Error(t, interfaces.ErrTaskNotRunning, r.Restart(t.Context(), "why"), "a restart of a stopped task")
			saved := r.Saved()
			r.Close()
			r = newRunner(t, ready{p}, Config{})
			restore(t, r, saved, p)
			go r.Run(t.Context())
		}
		must.OK(t, r.SetPauseState(t.Context(), interfaces.ScheduleForcedRun))
		<-p.starts
		synctest.Wait()
		if shown := interfaces.ShownSchedule(r.Wire()); shown != interfaces.ScheduleRun || r.State().Stopped {
			t.Errorf("a started task without a schedule is shown as %q", shown)
		}
		r.Kill(nil, Graceful)
		synctest.Wait()
		err := r.SetPauseState(t.Context(), interfaces.ScheduleForcedPause)
		same.Error(t, interfaces.ErrTaskNotRunning, err, "a stop of a dead task")
		r.Close()
		synctest.Wait()
	})
}

// TestStopTaskIsRefused: a poststop task would keep its allocation from ending, and a success that a crash forgets is
// none.
func TestStopTaskIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		poststop := newRunner(t, ready{newOneProcess()}, Config{})
		poststop.cfg.Task.Lifecycle = &api.TaskLifecycle{Hook: api.TaskLifecycleHookPoststop}
		for r, want := range map[*Runner]string{
			poststop: "a poststop task can't be stopped by itself",
			newRunner(t, ready{newOneProcess()}, Config{Observer: unsaved{}}): "no space left on device",
		} {
			r.Receive(interfaces.ScheduleRun)
			go r.Run(t.Context())
			err := r.SetPauseState(t.Context(), interfaces.ScheduleForcedPause)
			same.Says(t, nil, want, err)
			r.Kill(nil, AtOnce)
			synctest.Wait()
			r.Close()
		}
		synctest.Wait()
	})
}
