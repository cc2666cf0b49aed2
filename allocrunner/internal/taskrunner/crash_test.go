//go:build !race

package taskrunner

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/restarts"
)

// The model of a task whose runner may be killed at any moment: its state and what goes on around it, what is written
// down, the supervisor's process, and what has to hold of all that. It is plain data, so that every state that can be
// reached is looked at once.
type model struct {
	runner  runnerModel // lost with the runner
	disk    recordModel
	process processModel // the supervisor's latest
	truth   truthModel
	budget  budgetModel
}

type runnerModel struct {
	state  state
	record recordModel // what Saved gives
	timer  bool
	start  startModel
	watch  bool // the end of the process will be reported
	tree   bool // the driver stops the process
}

type startModel int

const (
	noStart  startModel = iota
	launches            // the process is not there yet, or never will be
	born                // it is, and the runner does not know
)

// recordModel is what is written down of a task.
type recordModel struct {
	phase, intent     string
	failed, setUp     bool
	attempts          int
	due               bool
	handle            int // the number of the process, 0 for none
	starts, ends      int // the events Started and Terminated
	lastCode, lastRun int // of the latest Terminated: the code, and how many had been reported with it
	override          interfaces.ScheduleState
}

// processModel is the nth process of the task.
type processModel struct {
	number int
	runs   bool
	code   int
	gone   bool // with the machine: the supervisor knows nothing of it
}

// truthModel is what has been promised.
type truthModel struct {
	killed  bool // the task is to end
	reset   bool // it is to go back to before its start
	restart int  // the process with this number is to be followed by another
	over    bool // it has been dead, and may have been seen so
	forgot  bool // a process went unnoticed with the machine: nobody can tell of it
	paused  bool // no process is to run until an operator says so
}

// budgetModel bounds what others do, so that there is an end to it.
type budgetModel struct{ requests, pauses, crashes, processes int }

// how the runner ends, and what with it.
type crash string

const (
	agentKilled crash = "the runner is killed"
	bothKilled  crash = "the runner and the keeper are killed"
	powerCut    crash = "the power is cut"
)

// These events come from outside the runner.
type (
	writes   struct{} // what has changed is written, in its own time
	begins   struct{} // the process that is being started is there
	dies     struct{ code int }
	gaveUp   struct{} // the start was given up, or failed
	noticed  struct{} // the runner learns of the start
	reported struct{} // the runner learns of the end
)

var modelNow = time.Unix(10_000, 0)

// crashRules have every phase, and few attempts, past which they wait for another interval or not.
func crashRules(wait bool) rules {
	r := testRules
	r.now = modelNow
	r.shutdownDelay = time.Second
	r.policy = restarts.Policy{Attempts: 2, Interval: time.Hour, Delay: time.Second, Wait: wait}
	return r
}

// possible returns what can happen next.
func (s model) possible(rs rules) []event {
	events := []event{}
	add := func(when bool, e ...event) {
		if when {
			events = append(events, e...)
		}
	}
	r := s.runner
	add(s.disk != r.record, writes{})
	add(r.start == launches && s.budget.processes > 0, begins{})
	add(r.start == launches, gaveUp{})
	add(r.start == born, noticed{})
	add(s.process.runs, dies{0}, dies{1})
	add(!s.process.runs && r.watch, reported{})
	add(r.timer && !s.waitsForInterval(rs), elapsed{})
	add(r.state.phase == waiting, opened{})
	add(s.budget.requests > 0, killRequested{}, killRequested{mode: NoShutdownDelay}, restartRequested{},
		restartRequested{counted: true}, resetRequested{})
	add(s.budget.pauses > 0 && !s.truth.paused, overridden{interfaces.ScheduleForcedPause})
	add(s.truth.paused, overridden{interfaces.ScheduleRun})
	add(rs.policy.Wait && !r.state.last, lastInterval{})
	add(s.budget.crashes > 0, agentKilled, bothKilled, powerCut)
	return events
}

// waitsForInterval reports whether the task waits for the next interval of its restart policy, which never comes here:
// time stands still.
func (s model) waitsForInterval(r rules) bool {
	m := s.runner.state
	return m.phase == backoff && m.attempts.Count > r.policy.Attempts
}

// happens returns the state after an event.
func (s model) happens(r rules, e event) (model, error) {
	switch e := e.(type) {
	case writes:
		s.disk = s.runner.record
		return s, nil
	case begins:
		s.budget.processes--
		if s.process.runs {
			return s, fmt.Errorf("a second copy is started")
		}
		s.process = processModel{number: s.process.number + 1, runs: true}
		s.runner.start = born
		return s, nil
	case dies:
		s.process.runs, s.process.code = false, e.code
		return s, nil
	case crash:
		s.budget.crashes--
		return s.crash(r, e)
	case gaveUp:
		s.runner.start = noStart
		return s.handle(r, startFailed{event: driverFailureEvent("x")})
	case noticed:
		s.runner.start = noStart
		return s.handle(r, started{})
	case reported:
		s.runner.watch, s.runner.tree = false, false
		return s.handle(r, exited{result: interfaces.ExitResult{ExitCode: s.process.code}})
	case elapsed:
		s.runner.timer = false
	case killRequested, restartRequested, resetRequested:
		s.budget.requests--
	case overridden:
		if e.state.Pauses() {
			s.budget.pauses--
		}
	}
	return s.handle(r, e)
}

// handle is Runner.handle.
func (s model) handle(r rules, e event) (model, error) {
	was := s.runner.state
	is, effects := r.next(was, e)
	s.runner.state = is
	if _, ok := e.(started); ok {
		s.runner.record.handle = s.process.number
	}
	s.show(effects)
	s.promise(was, e)
	if mustBeSafe(was, is) {
		s.disk = s.runner.record
	}
	s.truth.over = s.truth.over || is.phase == dead
	for _, a := range effects {
		switch a.(type) {
		case start:
			if err := s.mayStart(); err != nil {
				return s, err
			}
			s.runner.start = launches
		case watch:
			s.runner.watch = true
		case arm:
			s.runner.timer = true
		case disarm:
			s.runner.timer = false
		case stop:
			s.runner.tree = true
		}
	}
	return s, nil
}

// show is Runner.show, with the record's own idea of what is kept.
func (s *model) show(effects []effect) {
	rec := &s.runner.record
	for _, a := range effects {
		e, ok := a.(emit)
		switch {
		case ok && e.event.Type == api.TaskStarted:
			rec.starts++
		case ok && e.event.Type == api.TaskTerminated:
			rec.ends++
			rec.lastCode, rec.lastRun = s.process.code, s.process.number
		}
	}
	var kept record
	if rec.due {
		kept.savedTask.Due = modelNow
	}
	kept.set(s.runner.state, modelNow, armed(effects))
	k := kept.saved()
	rec.phase, rec.intent, rec.failed, rec.setUp = k.Phase, k.Intent, k.Failed, k.SetUp
	rec.attempts, rec.due, rec.override = k.Attempts, !k.Due.IsZero(), k.Override
}

// promise notes what has been requested and is answered from here on.
func (s *model) promise(was state, e event) {
	is := s.runner.state
	switch e := e.(type) {
	case overridden:
		s.truth.paused = e.state.Pauses()
	case killRequested:
		s.truth.killed = s.truth.killed || was.phase != dead
	case restartRequested:
		if is.intent == restart {
			s.truth.restart = s.process.number
		}
	case resetRequested:
		if was.intent != kill && was.phase != waiting {
			s.truth.reset, s.truth.over, s.truth.restart = true, false, 0
		}
	case opened:
		s.truth.reset = false
	}
}

func (s model) mayStart() error {
	switch {
	case s.truth.killed:
		return fmt.Errorf("a task that is to end is started")
	case s.truth.reset:
		return fmt.Errorf("a task is started that is to wait for its turn")
	case s.truth.over:
		return fmt.Errorf("a dead task is started")
	case s.truth.paused:
		return fmt.Errorf("a paused task is started")
	}
	return nil
}

// crash ends the runner, and has another one go on.
func (s model) crash(r rules, how crash) (model, error) {
	known := found{handle: strconv.Itoa(s.process.number)}
	if how != agentKilled && s.process.runs {
		s.process.runs, s.process.code = false, -1
	}
	if !s.process.runs {
		known.ended = true
	}
	s.process.gone = s.process.gone || how == powerCut
	if s.process.number == 0 || s.process.gone {
		known = found{}
	}
	s.truth.forgot = s.truth.forgot || how == powerCut && s.disk.ends != s.process.number &&
		s.disk.handle != s.process.number
	res := known.resume(r, s.disk.saved())
	s.runner = runnerModel{state: res.state, record: s.disk, timer: has[arm](res.effects),
		tree: has[stop](res.effects)}
	s.show(nil)
	_, begins := res.first.(started)
	switch {
	case res.process && begins:
		s.runner.start = born
	case res.process:
		s.runner.watch = true
	case res.first != nil:
		var err error
		if s, err = s.handle(r, res.first); err != nil {
			return s, err
		}
	}
	return s.handle(r, clockRead{})
}

func has[E effect](effects []effect) bool {
	return slices.ContainsFunc(effects, func(e effect) bool { _, ok := e.(E); return ok })
}

func (rec recordModel) saved() interfaces.SavedTask {
	saved := interfaces.SavedTask{
		Phase: rec.phase, Intent: rec.intent, Failed: rec.failed, SetUp: rec.setUp, Attempts: rec.attempts,
		IntervalStart: modelNow, Override: rec.override,
	}
	if rec.due {
		saved.Due = modelNow
	}
	if rec.handle > 0 {
		saved.Handle = interfaces.Handle(strconv.Itoa(rec.handle))
	}
	return saved
}

// holds is what has to be true at any time.
func (s model) holds() error {
	m, rec, p := s.runner.state, s.runner.record, s.process
	switch {
	case m.phase == running && s.truth.reset:
		return fmt.Errorf("a restart of all tasks is forgotten")
	case m.phase == running && s.truth.restart >= p.number && s.truth.restart > 0:
		return fmt.Errorf("a restart is forgotten")
	case m.phase == running && s.truth.killed:
		return fmt.Errorf("a kill is forgotten")
	case m.phase == running && s.truth.paused:
		return fmt.Errorf("a pause is forgotten")
	case m.phase == paused && !s.truth.paused:
		return fmt.Errorf("a task stays paused")
	case m.phase == dead && (p.runs || s.runner.start != noStart):
		return fmt.Errorf("a dead task has a process")
	case m.phase == starting && s.runner.start == noStart, m.phase == backoff && !s.runner.timer,
		p.runs && (m.phase == shutdownDelay || m.phase == stopping) && !s.runner.timer && !s.runner.tree:
		return fmt.Errorf("nothing will ever happen to the task")
	case m.hasProcess() && !s.runner.watch:
		return fmt.Errorf("nobody waits for the process")
	case p.runs && !s.runner.watch && s.runner.start != born:
		return fmt.Errorf("nobody knows of the process")
	case rec.ends > p.number || rec.starts > p.number:
		return fmt.Errorf("an end, or a start, is reported twice")
	case s.truth.forgot:
		return nil
	case m.phase == running && (rec.starts != p.number || rec.ends != p.number-1):
		return fmt.Errorf("a start, or an end before it, is untold of a task that runs")
	case m.phase == dead && (rec.ends != p.number || rec.starts != p.number || rec.lastRun == p.number &&
		rec.lastCode != p.code):
		return fmt.Errorf("a start, or an end, of a dead task is not reported, or with another code")
	}
	return nil
}

// ends lets a task that is killed come to its end.
func (s model) ends(r rules) error {
	s, err := s.handle(r, killRequested{})
	for range 10 {
		if err == nil {
			err = s.holds()
		}
		switch {
		case err != nil || s.runner.state.phase == dead:
			return err
		case s.process.runs:
			s.process.runs, s.process.code = false, 130
		case s.runner.start == launches:
			s, err = s.happens(r, gaveUp{})
		case s.runner.start == born:
			s, err = s.happens(r, noticed{})
		case s.runner.watch:
			s, err = s.happens(r, reported{})
		default:
			return fmt.Errorf("a killed task is stuck in phase %v", s.runner.state.phase)
		}
	}
	return fmt.Errorf("a killed task does not come to an end")
}

// settles lets a task that has no other interval fail until it is dead, without a kill and without a wait for the next
// interval.
func (s model) settles(r rules) error {
	s, err := s.handle(r, overridden{})
	if err == nil {
		s, err = s.handle(r, lastInterval{})
	}
	for range 30 {
		if err == nil {
			err = s.holds()
		}
		phase := s.runner.state.phase
		switch {
		case err != nil || phase == dead:
			return err
		case s.waitsForInterval(r):
			return fmt.Errorf("a task waits for another interval when there is none")
		case phase == waiting:
			s, err = s.happens(r, opened{})
		case s.process.runs:
			s, err = s.happens(r, dies{1})
		case s.runner.start == launches:
			s, err = s.happens(r, begins{})
		case s.runner.start == born:
			s, err = s.happens(r, noticed{})
		case s.runner.watch:
			s, err = s.happens(r, reported{})
		default:
			s, err = s.happens(r, elapsed{})
		}
	}
	return fmt.Errorf("a task that fails does not come to an end in its last interval")
}

// explore comes by every state that can be reached, and gives what is wrong with any, each with the shortest way there.
func explore(r rules, budget budgetModel) (states int, wrong map[string]string) {
	first := model{budget: budget}
	first.show(nil)
	first.disk = first.runner.record
	type step struct {
		from model
		e    any
	}
	came, wrong := map[model]step{first: {}}, map[string]string{}
	fails := func(s model, err error) {
		if err == nil || wrong[err.Error()] != "" {
			return
		}
		way := ""
		for at := s; at != first; at = came[at].from {
			way = fmt.Sprintf("\n  %-50s -> %v, process %+v", fmt.Sprintf("%T %+[1]v", came[at].e),
				at.runner.state.phase, at.process) + way
		}
		wrong[err.Error()] = way
	}
	for queue := []model{first}; len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		fails(s, s.ends(r))
		fails(s, s.settles(r))
		for _, e := range s.possible(r) {
			next, err := s.happens(r, e)
			if _, known := came[next]; known {
				continue
			}
			came[next] = step{s, e}
			if err == nil {
				err = next.holds()
			}
			if err == nil {
				queue = append(queue, next)
			}
			fails(next, err)
		}
	}
	return len(came), wrong
}

// TestAnyMoment looks at every state that a task can be in, with its runner killed at any moment, alone or with the
// keeper or the whole machine: no second copy, no dead task started, no process that nobody knows of, no end unreported
// or reported twice, nothing forgotten that was requested, and no wait for another interval when there is none.
//
// All of it is in one goroutine, and takes a minute under the race detector: the Makefile runs it without.
func TestAnyMoment(t *testing.T) {
	for budget, wait := range map[budgetModel]bool{
		{requests: 2, crashes: 1, processes: 3}: false, {requests: 1, crashes: 2, processes: 3}: false, {requests: 1,
			crashes: 1, processes: 4}: true, {requests: 1, pauses: 1, crashes: 1, processes: 3}: false,
	} {
		t.Run(fmt.Sprintf("%+v, mode delay %v", budget, wait), func(t *testing.T) {
			t.Parallel()
			states, wrong := explore(crashRules(wait), budget)
			for what, way := range wrong {
				t.Errorf("%s:%s", what, way)
			}
			t.Logf("%d states", states)
		})
	}
}
