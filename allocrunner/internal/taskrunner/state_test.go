package taskrunner

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hashicorp/nomad/api"
	"pgregory.net/rapid"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/restarts"
	"taskapi/allocrunner/schedule"
	"taskapi/internal/same"
)

var testRules = rules{
	now:         time.Unix(1000, 0),
	policy:      restarts.Policy{Attempts: 2, Interval: time.Minute, Delay: time.Second, OnSuccess: true},
	killSignal:  syscall.SIGINT,
	killTimeout: 5 * time.Second,
}

// everyDay is a schedule that always lets a task run, but for a minute before midnight; noDay never does.
var everyDay, noDay = mustParse("0 0 * * * *"), mustParse("0 0 * * * 1999")

func mustParse(start string) schedule.Times {
	cron := api.TaskScheduleCron{Start: start, End: "59 23", Timezone: "UTC"}
	times, err := schedule.Parse(&api.TaskSchedule{Cron: &cron})
	if err != nil {
		panic(err)
	}
	return times
}

func exit(code int) exited { return exited{result: interfaces.ExitResult{ExitCode: code}} }

func says(n drivers.Notice) notified { return notified{notice: n} }

// play puts events through next and gives the types of the events it emitted.
func play(r rules, m state, events ...event) (state, []string) {
	var types []string
	for _, e := range events {
		var effects []effect
		m, effects = r.next(m, e)
		for _, a := range effects {
			if e, ok := a.(emit); ok {
				types = append(types, e.event.Type)
			}
		}
	}
	return m, types
}

func TestSequencesOfEvents(t *testing.T) {
	delayed := testRules
	delayed.shutdownDelay = 3 * time.Second
	once := testRules
	once.policy = restarts.Policy{Attempts: 2, Interval: time.Minute}
	patient := testRules
	patient.policy = restarts.Policy{Attempts: 1, Interval: time.Minute, Wait: true}
	never := testRules
	never.policy, never.readyTimeout = restarts.Policy{}, time.Second
	scheduled, closed := testRules, testRules
	scheduled.times, closed.times = everyDay, noDay
	closedDelayed := closed
	closedDelayed.shutdownDelay = 3 * time.Second
	stopTask := overridden{interfaces.ScheduleForcedPause}
	notifying := testRules
	notifying.readyTimeout, notifying.watchdog = 30*time.Second, 10*time.Second
	for _, tc := range []struct {
		name   string
		rules  rules
		events []event
		want   []string
		phase  phase
		failed bool
	}{
		{"ends well", once, []event{opened{}, started{}, exit(0)},
			[]string{"Task Setup", "Started", "Terminated"}, dead, false},
		{"restarts by policy, without a second set-up", testRules,
			[]event{opened{}, started{}, exit(1), elapsed{}, started{}},
			[]string{"Task Setup", "Started", "Terminated", "Restarting", "Started"}, running, false},
		{"no restarts allowed", never, []event{opened{}, started{}, exit(1)},
			[]string{"Task Setup", "Started", "Terminated", "Not Restarting"}, dead, true},
		{"killed while running", testRules, []event{opened{}, started{}, killRequested{}, exit(130)},
			[]string{"Task Setup", "Started", "Killing", "Terminated", "Killed"}, dead, false},
		{"killed twice", testRules, []event{opened{}, started{}, killRequested{}, killRequested{}, exit(130)},
			[]string{"Task Setup", "Started", "Killing", "Terminated", "Killed"}, dead, false},
		{"killed in its shutdown delay", delayed, []event{opened{}, started{}, killRequested{}, elapsed{}, exit(0)},
			[]string{"Task Setup", "Started", "Waiting for shutdown delay", "Killing", "Terminated",
				"Killed"}, dead, false},
		{"ended in its shutdown delay", delayed, []event{opened{}, started{}, killRequested{}, exit(0)},
			[]string{"Task Setup", "Started", "Waiting for shutdown delay", "Terminated", "Killed"}, dead, false},
		{"hurried in its shutdown delay", delayed, []event{opened{}, started{}, killRequested{},
			killRequested{mode: AtOnce}, exit(137)},
			[]string{"Task Setup", "Started", "Waiting for shutdown delay", "Killing", "Terminated",
				"Killed"}, dead, false},
		{"restarted on request in its restart delay", once, []event{opened{}, started{}, exit(1),
			restartRequested{reason: "why"}, started{}, elapsed{}},
			[]string{"Task Setup", "Started", "Terminated", "Restarting", "Restart Signaled", "Restarting",
				"Started"}, running, false},
		{"killed without its shutdown delay", delayed, []event{opened{}, started{}, killRequested{mode: NoShutdownDelay},
			exit(0)},
			[]string{"Task Setup", "Started", "Killing", "Terminated", "Killed"}, dead, false},
		{"killed before it started", testRules, []event{killRequested{reason: SiblingFailedEvent("x")}},
			[]string{"Sibling Task Failed", "Killing"}, dead, false},
		{"failed by a hook before it started", testRules, []event{opened{},
			killRequested{reason: failedEvent("x"), fails: true}, startFailed{}}, []string{"Task Setup", "Killing"}, dead, true},
		{"failed by a hook while running", testRules, []event{opened{}, started{},
			killRequested{reason: failedEvent("x"), fails: true}, exit(130)},
			[]string{"Task Setup", "Started", "Killing", "Terminated", "Killed"}, dead, true},
		{"failed by a hook after its end", once, []event{opened{}, started{}, exit(0),
			killRequested{reason: failedEvent("x"), fails: true}},
			[]string{"Task Setup", "Started", "Terminated"}, dead, false},
		{"killed in a restart delay", testRules, []event{opened{}, started{}, exit(1), killRequested{}, elapsed{}},
			[]string{"Task Setup", "Started", "Terminated", "Restarting", "Killing"}, dead, false},
		{"restarted on request, uncounted", testRules, []event{opened{}, started{}, restartRequested{reason: "why"},
			exit(130), started{}},
			[]string{"Task Setup", "Started", "Restart Signaled", "Terminated", "Restarting",
				"Started"}, running, false},
		{"restarted on request twice at once", testRules, []event{opened{}, started{}, restartRequested{reason: "why"},
			restartRequested{reason: "why"}, exit(130), started{}},
			[]string{"Task Setup", "Started", "Restart Signaled", "Terminated", "Restarting",
				"Started"}, running, false},
		{"killed while it is restarted", testRules, []event{opened{}, started{}, restartRequested{reason: "why"},
			killRequested{}, exit(130)},
			[]string{"Task Setup", "Started", "Restart Signaled", "Killing", "Terminated", "Killed"}, dead, false},
		{"restarted on request while a check's restart stops it: at once, uncounted", never,
			[]event{opened{}, started{}, restartRequested{reason: "check", counted: true},
				restartRequested{reason: "why"}, exit(130), started{}},
			[]string{"Task Setup", "Started", "Restart Signaled", "Restart Signaled", "Terminated", "Restarting",
				"Started"}, running, false},
		{"unhealthy while it is restarted on request", never,
			[]event{opened{}, started{}, restartRequested{reason: "why"},
				restartRequested{reason: "check", counted: true}, exit(130), started{}},
			[]string{"Task Setup", "Started", "Restart Signaled", "Terminated", "Restarting",
				"Started"}, running, false},
		{"ready", notifying, []event{opened{}, started{notifies: true}, says(drivers.Notice{Status: "loading"}),
			says(drivers.Notice{Ready: true, Status: "loading"}), elapsed{}, says(drivers.Notice{Ready: true})},
			[]string{"Task Setup", "Started", "Status", "Ready", "Status"}, running, false},
		{"not ready in time", notifying, []event{opened{}, started{notifies: true}, elapsed{}, exit(130)},
			[]string{"Task Setup", "Started", "Restart Signaled", "Terminated", "Restarting"}, backoff, false},
		{"not ready in time for the last time", never, []event{opened{}, started{notifies: true}, elapsed{}, exit(130)},
			[]string{"Task Setup", "Started", "Restart Signaled", "Terminated", "Not Restarting"}, dead, true},
		{"ready while it is being killed", notifying, []event{opened{}, started{notifies: true}, killRequested{},
			says(drivers.Notice{Ready: true}), elapsed{}, exit(130)},
			[]string{"Task Setup", "Started", "Killing", "Ready", "Terminated", "Killed"}, dead, false},
		{"a task that does not notify has no time to be ready in", notifying, []event{opened{}, started{}, elapsed{}},
			[]string{"Task Setup", "Started"}, running, false},
		{"silent", notifying, []event{opened{}, started{notifies: true}, says(drivers.Notice{Ready: true}), silent{},
			silent{}, exit(134)},
			[]string{"Task Setup", "Started", "Ready", "Restart Signaled", "Terminated", "Restarting"}, backoff, false},
		{"says that it can't go on", notifying, []event{opened{}, started{notifies: true},
			says(drivers.Notice{Ready: true, Trigger: true}), exit(134)},
			[]string{"Task Setup", "Started", "Ready", "Restart Signaled", "Terminated", "Restarting"}, backoff, false},
		{"silent while it is being killed", notifying, []event{opened{}, started{notifies: true}, killRequested{},
			silent{}, exit(134)},
			[]string{"Task Setup", "Started", "Killing", "Terminated", "Killed"}, dead, false},
		{"unhealthy in its restart delay", testRules, []event{opened{}, started{}, exit(1),
			restartRequested{reason: "check", counted: true}},
			[]string{"Task Setup", "Started", "Terminated", "Restarting"}, backoff, false},
		{"reset in its restart delay", testRules, []event{opened{}, started{}, exit(1), resetRequested{"all"}, elapsed{}},
			[]string{"Task Setup", "Started", "Terminated", "Restarting", "Restart Signaled",
				"Restarting"}, waiting, false},
		{"reset in its shutdown delay", delayed, []event{opened{}, started{}, killRequested{}, resetRequested{"all"},
			elapsed{}, exit(0)},
			[]string{"Task Setup", "Started", "Waiting for shutdown delay", "Killing", "Terminated",
				"Killed"}, dead, false},
		{"reset after it was killed", testRules, []event{opened{}, started{}, killRequested{}, exit(130),
			resetRequested{"all"}, opened{}},
			[]string{"Task Setup", "Started", "Killing", "Terminated", "Killed"}, dead, false},
		{"reset after it was killed in a restart delay", testRules,
			[]event{opened{}, started{}, exit(1), killRequested{}, resetRequested{"all"}},
			[]string{"Task Setup", "Started", "Terminated", "Restarting", "Killing"}, dead, false},
		{"reset after it was killed when it had just ended", once,
			[]event{opened{}, started{}, exit(0), killRequested{}, resetRequested{"all"}, opened{}},
			[]string{"Task Setup", "Started", "Terminated"}, dead, false},
		{"reset after it was killed before it started", testRules,
			[]event{killRequested{}, resetRequested{"all"}, opened{}},
			[]string{"Killing"}, dead, false},
		{"reset when dead", once, []event{opened{}, started{}, exit(0), resetRequested{"all"}, opened{}, started{}},
			[]string{"Task Setup", "Started", "Terminated", "Restart Signaled", "Restarting",
				"Started"}, running, false},
		{"a start that fails for good", testRules, []event{opened{}, startFailed{failedValidationEvent("bad"), true}},
			[]string{"Task Setup", "Failed Validation", "Not Restarting"}, dead, true},
		{"a start that fails and is tried again", testRules,
			[]event{opened{}, startFailed{driverFailureEvent("no"), false}, elapsed{}, started{}},
			[]string{"Task Setup", "Driver Failure", "Restarting", "Started"}, running, false},
		{"killed while starting", testRules, []event{opened{}, killRequested{},
			startFailed{driverFailureEvent("given up"), false}},
			[]string{"Task Setup", "Killing"}, dead, false},
		{"paused by an operator and run again", scheduled, []event{opened{}, started{}, overridden{interfaces.
			ScheduleForcedPause}, exit(130), clockRead{}, overridden{}, started{}},
			[]string{"Task Setup", "Started", "Pausing", "Terminated", "Running", "Started"}, running, false},
		{"outside of its times, until an operator runs it", closed, []event{clockRead{}, opened{}, clockRead{},
			overridden{interfaces.ScheduleForcedRun}, started{}},
			[]string{"Task Setup", "Pausing", "Running", "Started"}, running, false},
		{"killed while it is paused", closed, []event{clockRead{}, opened{}, killRequested{}},
			[]string{"Task Setup", "Pausing", "Killing"}, dead, false},
		{"killed while it is stopped for a pause", scheduled, []event{opened{}, started{}, overridden{interfaces.
			ScheduleForcedPause}, killRequested{}, exit(130)},
			[]string{"Task Setup", "Started", "Pausing", "Killing", "Terminated", "Killed"}, dead, false},
		{"paused while it starts", scheduled, []event{opened{}, overridden{interfaces.ScheduleForcedPause},
			startFailed{}}, []string{"Task Setup", "Pausing"}, paused, false},
		{"paused in a restart delay", scheduled, []event{opened{}, started{}, exit(1),
			overridden{interfaces.ScheduleForcedPause}, elapsed{}},
			[]string{"Task Setup", "Started", "Terminated", "Restarting", "Pausing"}, paused, false},
		{"restarted while it is paused", scheduled, []event{opened{}, overridden{interfaces.ScheduleForcedPause},
			startFailed{}, restartRequested{}}, []string{"Task Setup", "Pausing"}, paused, false},
		{"reset while it is paused", closed, []event{clockRead{}, opened{}, resetRequested{"all"}, opened{}},
			[]string{"Task Setup", "Pausing", "Restart Signaled", "Restarting", "Pausing"}, paused, false},
		{"stopped without a schedule, and started", testRules, []event{opened{}, started{}, stopTask, exit(130), clockRead{},
			restartRequested{}, overridden{}, started{}},
			[]string{"Task Setup", "Started", "Pausing", "Terminated", "Running", "Started"}, running, false},
		{"stopped before its turn", testRules, []event{stopTask, opened{}},
			[]string{"Pausing", "Task Setup", "Pausing"}, paused, false},
		{"stopped with a shutdown delay", delayed, []event{opened{}, started{}, stopTask, stopTask, elapsed{}, exit(130)},
			[]string{"Task Setup", "Started", "Pausing", "Waiting for shutdown delay", "Terminated"}, paused, false},
		{"outside of its times, without the shutdown delay", closedDelayed, []event{clockRead{}, opened{},
			overridden{interfaces.ScheduleForcedRun}, started{}, overridden{}, exit(130)},
			[]string{"Task Setup", "Pausing", "Running", "Started", "Pausing", "Terminated"}, paused, false},
		{"started again in the shutdown delay", delayed, []event{opened{}, started{}, stopTask, overridden{}, elapsed{},
			exit(130), started{}}, []string{"Task Setup", "Started", "Pausing", "Waiting for shutdown delay", "Running",
			"Terminated", "Started"}, running, false},
		{"killed in the shutdown delay of a stop", delayed, []event{opened{}, started{}, stopTask, killRequested{},
			elapsed{}, exit(130)}, []string{"Task Setup", "Started", "Pausing", "Waiting for shutdown delay", "Killing",
			"Terminated", "Killed"}, dead, false},
		{"killed at once in the shutdown delay of a stop", delayed, []event{opened{}, started{}, stopTask,
			killRequested{mode: AtOnce}, exit(137)}, []string{"Task Setup", "Started", "Pausing",
			"Waiting for shutdown delay", "Killing", "Terminated", "Killed"}, dead, false},
		{"reset in the shutdown delay of a stop", delayed, []event{opened{}, started{}, stopTask, resetRequested{"all"},
			elapsed{}, exit(130), opened{}}, []string{"Task Setup", "Started", "Pausing", "Waiting for shutdown delay",
			"Restart Signaled", "Terminated", "Restarting", "Pausing"}, paused, false},
		{"stopped while it ends as unhealthy", once, []event{opened{}, started{},
			restartRequested{reason: "sick", counted: true}, stopTask, exit(130)},
			[]string{"Task Setup", "Started", "Restart Signaled", "Pausing", "Terminated"}, paused, false},
		{"leftovers are reported", once, []event{opened{}, started{}, exited{leftover: 2}},
			[]string{"Task Setup", "Started", "Terminated", api.TaskDriverMessage}, dead, false},
		{"in its last interval, past its attempts", patient,
			[]event{lastInterval{}, opened{}, startFailed{event: driverFailureEvent("no")}, elapsed{}, started{},
				exit(1)},
			[]string{"Task Setup", "Driver Failure", "Restarting", "Started", "Terminated",
				"Not Restarting"}, dead, true},
		{"waiting for another interval when there is none any more", patient,
			[]event{opened{}, started{}, exit(1), elapsed{}, started{}, exit(1), lastInterval{}, elapsed{}},
			[]string{"Task Setup", "Started", "Terminated", "Restarting", "Started", "Terminated", "Restarting",
				"Not Restarting"}, dead, true},
		{"waiting within its policy when there is no other interval", patient,
			[]event{opened{}, started{}, exit(1), lastInterval{}, elapsed{}, started{}, exit(0)},
			[]string{"Task Setup", "Started", "Terminated", "Restarting", "Started", "Terminated"}, dead, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, got := play(tc.rules, state{attempts: restarts.State{Start: time.Unix(1000, 0)}}, tc.events...)
			same.As(t, tc.want, got, "events")
			if m.phase != tc.phase || m.failed != tc.failed {
				t.Errorf("phase %v failed %v, want %v %v", m.phase, m.failed, tc.phase, tc.failed)
			}
		})
	}
}

// simulation is what effects act on: it answers as processes and timers do, and fails the test on what must never
// happen.
type simulation struct {
	t       *rapid.T
	start   bool // a start is under way
	process bool
	timer   bool
	over    bool // the stop hooks have run
}

func (w *simulation) apply(effects []effect) {
	for _, a := range effects {
		switch a.(type) {
		case start:
			if w.start || w.process {
				w.t.Fatalf("a second copy is started")
			}
			w.start = true
		case stop:
			if !w.process {
				w.t.Fatalf("%T without a process", a)
			}
		case arm:
			w.timer = true
		case disarm:
			w.timer = false
		case stopHooks:
			if w.over {
				w.t.Fatalf("the stop hooks run twice")
			}
			w.over = true
		}
	}
}

// possible returns the events that the simulation can produce now; answers alone when nobody asks for anything more.
func (w *simulation) possible(answersOnly bool) []event {
	var events []event
	if w.start {
		events = append(events, started{}, started{notifies: true}, startFailed{event: driverFailureEvent("x")})
	}
	if w.process {
		events = append(events, exit(0), exit(1), says(drivers.Notice{Ready: true, Status: "s"}),
			says(drivers.Notice{Trigger: true}), silent{})
	}
	if w.timer {
		events = append(events, elapsed{})
	}
	if !answersOnly {
		events = append(events, opened{}, killRequested{}, killRequested{mode: NoShutdownDelay},
			killRequested{mode: AtOnce}, restartRequested{}, restartRequested{counted: true}, resetRequested{},
			lastInterval{}, clockRead{}, overridden{interfaces.ScheduleForcedPause}, overridden{interfaces.ScheduleForcedRun},
			overridden{interfaces.ScheduleRun})
	}
	return events
}

func (w *simulation) happens(e event) {
	switch e.(type) {
	case started:
		w.start, w.process = false, true
	case startFailed:
		w.start = false
	case exited:
		w.process = false
	case elapsed:
		w.timer = false
	}
}

// TestEveryLifeIsSound plays arbitrary lives: never a second copy, never a signal to nobody, always a way on, and a
// killed task ends and stays ended.
func TestEveryLifeIsSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := testRules
		r.shutdownDelay = rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(t, "shutdown delay")
		r.policy.Wait = rapid.Bool().Draw(t, "mode delay")
		r.readyTimeout, r.watchdog = time.Second, time.Second
		r.times = rapid.SampledFrom([]schedule.Times{{}, everyDay, noDay}).Draw(t, "schedule")
		w := &simulation{t: t}
		m := state{outside: r.outsideNow()}
		step := func(e event) {
			w.happens(e)
			var effects []effect
			was := m.phase
			m, effects = r.next(m, e)
			w.over = w.over && (was != dead || m.phase == dead) // reset, it may die again
			w.apply(effects)
			if w.over != (m.phase == dead) {
				t.Fatalf("after %#v: phase %v, and the stop hooks have run: %v", e, m.phase, w.over)
			}
			r.now = r.now.Add(time.Second)
			if got := m.hasProcess(); got != w.process {
				t.Fatalf("after %#v: hasProcess is %v, there is one: %v", e, got, w.process)
			}
			if m.beingStopped() && !w.start && !w.process {
				t.Fatalf("after %#v: nothing is on its way out, and those who wait for it are not answered", e)
			}
			waits := m.phase == backoff || m.phase == shutdownDelay
			waits = waits || m.phase == running && m.unready
			if pauses := m.schedule().Pauses(); m.phase == paused && !pauses || m.phase == running && pauses {
				t.Fatalf("after %#v: phase %v, and the schedule says %q", e, m.phase, m.schedule())
			}
			if waits && !w.timer {
				t.Fatalf("after %#v: phase %v waits for a timer that is not armed", e, m.phase)
			}
			if m.last && m.phase == backoff && m.attempts.Count > r.policy.Attempts {
				t.Fatalf("after %#v: it waits for another interval", e)
			}
		}
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			step(rapid.SampledFrom(w.possible(false)).Draw(t, "event"))
		}
		step(killRequested{})
		for i := 0; m.phase != dead; i++ {
			answers := w.possible(true)
			if len(answers) == 0 || i > 10 {
				t.Fatalf("a killed task is stuck in phase %v", m.phase)
			}
			step(rapid.SampledFrom(answers).Draw(t, "answer"))
		}
		for range rapid.IntRange(0, 5).Draw(t, "steps afterwards") {
			step(rapid.SampledFrom(w.possible(false)).Draw(t, "late event"))
		}
		if m.phase != dead {
			t.Fatalf("a killed task has come to phase %v", m.phase)
		}
		if w.start || w.process {
			t.Fatalf("dead with a process (%v) or a start under way (%v)", w.process, w.start)
		}
	})
}

// TestAProcessThatIsToEndIsNotReported: what poststart hooks would announce, pre-kill hooks would have to take back.
func TestAProcessThatIsToEndIsNotReported(t *testing.T) {
	for _, requested := range []event{killRequested{}, killRequested{mode: AtOnce}, resetRequested{}} {
		m, _ := play(testRules, state{}, opened{}, requested)
		_, effects := testRules.next(m, started{})
		if slices.Contains(effects, effect(poststart{})) || !slices.Contains(effects, effect(watch{})) {
			t.Errorf("%#v while it starts: effects %v", requested, effects)
		}
	}
}

// TestAKillOfATaskThatIsBeingRestarted does what its event says, by the rules of now. A second kill changes nothing.
func TestAKillOfATaskThatIsBeingRestarted(t *testing.T) {
	slow := testRules
	slow.killTimeout = time.Hour
	for _, requested := range []event{restartRequested{}, restartRequested{counted: true}, resetRequested{}} {
		m, _ := play(slow, state{}, opened{}, started{}, requested)
		for _, want := range [][]effect{{disarm{}, stop{testRules.killSignal, testRules.killTimeout}}, nil} {
			var effects []effect
			m, effects = testRules.next(m, killRequested{})
			effects = slices.DeleteFunc(effects, func(a effect) bool { _, is := a.(emit); return is })
			if diff := cmp.Diff(want, effects, cmp.AllowUnexported(disarm{}, stop{}), cmpopts.EquateEmpty()); diff != "" ||
				m.phase != stopping || m.intent != kill {
				t.Errorf("after %#v: phase %v, intent %v, effects (-want +got):\n%s", requested, m.phase, m.intent,
					diff)
			}
		}
	}
}

// TestKillModeInTheShutdownDelay that a graceful kill has begun.
func TestKillModeInTheShutdownDelay(t *testing.T) {
	r := testRules
	r.shutdownDelay = time.Minute
	for mode, want := range map[KillMode][]effect{
		NoShutdownDelay: {emit{killingEvent(NoShutdownDelay, r.killTimeout)}, disarm{},
			stop{r.killSignal, r.killTimeout}},
		AtOnce: {emit{killingEvent(AtOnce, 0)}, disarm{}, stop{syscall.SIGKILL, 0}},
	} {
		m, _ := play(r, state{}, opened{}, started{}, killRequested{})
		m, effects := r.next(m, killRequested{mode: mode})
		if diff := cmp.Diff(want, effects, cmp.AllowUnexported(emit{}, disarm{}, stop{}),
			cmpopts.IgnoreFields(api.TaskEvent{}, "Time")); diff != "" || m.phase != stopping {
			t.Errorf("kill mode %v: phase %v, effects (-want +got):\n%s", mode, m.phase, diff)
		}
	}
}
