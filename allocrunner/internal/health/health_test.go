package health_test

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"pgregory.net/rapid"

	"taskapi/allocrunner/internal/health"
)

// at returns an allocation whose running tasks are all ready.
func at(tasks map[string]*api.TaskState, checks api.AllocCheckStatuses) health.Event {
	return health.Event{Tasks: tasks, Checks: checks}
}

// newJob returns a canonical service job whose group has a task of every kind, and a check of each kind.
func newJob(change func(*api.Job, *api.UpdateStrategy)) (*api.Job, *api.TaskGroup) {
	update := &api.UpdateStrategy{MinHealthyTime: new(10 * time.Second), HealthyDeadline: new(time.Minute)}
	service := func(onUpdate string) []*api.Service {
		return []*api.Service{{Name: "s", Provider: "nomad", Checks: []api.ServiceCheck{{Name: "c", OnUpdate: onUpdate}}}}
	}
	lifecycle := func(hook string, sidecar bool) *api.TaskLifecycle {
		return &api.TaskLifecycle{Hook: hook, Sidecar: sidecar}
	}
	group := &api.TaskGroup{Name: new("g"), Update: update, Services: service("require_healthy"), Tasks: []*api.Task{
		{Name: "init", Lifecycle: lifecycle("prestart", false), Services: service("")},
		{Name: "proxy", Lifecycle: lifecycle("prestart", true)},
		{Name: "main", Services: service("ignore")},
		{Name: "hello", Lifecycle: lifecycle("poststart", false)},
		{Name: "bye", Lifecycle: lifecycle("poststop", false)},
	}}
	job := &api.Job{ID: new("j"), Type: new("service"), TaskGroups: []*api.TaskGroup{group}}
	if change != nil {
		change(job, update)
	}
	job.Canonicalize()
	return job, group
}

func policy(t *testing.T, change func(*api.Job, *api.UpdateStrategy)) health.Policy {
	t.Helper()
	p, ok := health.For(newJob(change))
	if !ok {
		t.Fatal("nothing is decided")
	}
	return p
}

func TestFor(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*api.Job, *api.UpdateStrategy)
		want   bool
	}{
		"service":       {nil, true},
		"system":        {func(j *api.Job, _ *api.UpdateStrategy) { j.Type = new("system") }, true},
		"batch":         {func(j *api.Job, _ *api.UpdateStrategy) { j.Type = new("batch") }, false},
		"sysbatch":      {func(j *api.Job, _ *api.UpdateStrategy) { j.Type = new("sysbatch") }, false},
		"task states":   {func(_ *api.Job, u *api.UpdateStrategy) { u.HealthCheck = new("task_states") }, true},
		"manual":        {func(_ *api.Job, u *api.UpdateStrategy) { u.HealthCheck = new("manual") }, false},
		"no deployment": {func(_ *api.Job, u *api.UpdateStrategy) { u.MaxParallel = new(0) }, false},
		"by default":    {func(j *api.Job, _ *api.UpdateStrategy) { j.TaskGroups[0].Update = nil }, true},
		"batch default": {func(j *api.Job, _ *api.UpdateStrategy) { j.TaskGroups[0].Update, j.Type = nil, new("batch") },
			false},
	} {
		t.Run(name, func(t *testing.T) {
			if _, ok := health.For(newJob(c.change)); ok != c.want {
				t.Errorf("decides: %v, want %v", ok, c.want)
			}
		})
	}
}

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func second(n int) time.Time { return epoch.Add(time.Duration(n) * time.Second) }

// tasks returns a healthy group, with changes such as "main pending" or "init failed".
func tasks(changes ...string) map[string]*api.TaskState {
	m := map[string]*api.TaskState{
		"init": {State: "dead"}, "proxy": {State: "running"}, "main": {State: "running", StartedAt: epoch},
		"hello": {State: "dead"}, "bye": {State: "pending"},
	}
	for _, change := range changes {
		name, state, _ := strings.Cut(change, " ")
		switch state {
		case "failed":
			m[name].State, m[name].Failed = "dead", true
		case "unknown":
			delete(m, name)
		default:
			m[name].State = state
		}
	}
	return m
}

// results has a check of the group, and one of each task that has some.
func results(group, ofInit, ofMain string) api.AllocCheckStatuses {
	return api.AllocCheckStatuses{
		"1": {ID: "1", Check: "c", Service: "s", Mode: "healthiness", Status: group},
		"2": {ID: "2", Check: "i", Service: "s", Mode: "healthiness", Status: ofInit, Task: "init"},
		"3": {ID: "3", Check: "m", Service: "s", Mode: "readiness", Status: ofMain, Task: "main"},
	}
}

// What is well at once is healthy after min_healthy_time; what is not says why at the deadline.
func TestWhatIsWell(t *testing.T) {
	good := results("success", "pending", "failure")
	states := func(_ *api.Job, u *api.UpdateStrategy) { u.HealthCheck = new("task_states") }
	for name, c := range map[string]struct {
		change func(*api.Job, *api.UpdateStrategy)
		in     health.Event
		reason string // empty for healthy
	}{
		"all":               {nil, at(tasks(), good), ""},
		"poststop does not": {nil, at(tasks("bye unknown"), good), ""},
		"main pending":      {nil, at(tasks("main pending"), good), `task "main" is pending`},
		"main unready": {nil, health.Event{Tasks: tasks(), Unready: map[string]bool{"main": true}, Checks: good},
			`task "main" has not said that it is ready`},
		"main dead":    {nil, at(tasks("main dead"), good), `task "main" is dead`},
		"main unknown": {nil, at(tasks("main unknown"), good), `task "main" is pending`},
		"sidecar dead": {nil, at(tasks("proxy dead"), good), `task "proxy" is dead`},
		"prestart running": {nil, at(tasks("init running"), good),
			`task "init" is running and has not ended`},
		"poststart running": {nil, at(tasks("hello running"), good),
			`task "hello" is running and has not ended`},
		"check fails": {nil, at(tasks(), results("failure", "success", "success")),
			`check "c" of service "s" is failure`},
		"check pending": {nil, at(tasks(), results("pending", "success", "success")),
			`check "c" of service "s" is pending`},
		"no results":            {nil, at(tasks(), nil), "its checks have no results"},
		"task states":           {states, at(tasks(), results("failure", "failure", "failure")), ""},
		"task states, not well": {states, at(tasks("main pending"), nil), `task "main" is pending`},
		"without any checks": {func(j *api.Job, _ *api.UpdateStrategy) { j.TaskGroups[0].Services = nil },
			at(tasks(), nil), ""},
		"the checks of poststop": {nil, at(tasks(), api.AllocCheckStatuses{"x": {Status: "pending", Task: "bye"}}),
			""},
	} {
		t.Run(name, func(t *testing.T) {
			p := policy(t, c.change)
			s := p.Next(p.New(epoch), c.in, second(1))
			if s.Phase != health.Undecided {
				t.Fatalf("decided at once: %+v", s)
			}
			want, again, reason := health.Healthy, second(11), "healthy for 10s"
			if c.reason != "" {
				want, again, reason = health.Unhealthy, second(60), "not healthy within 1m0s: "+c.reason
			}
			if got := p.Again(s); !got.Equal(again) {
				t.Errorf("look again %v after the start, want %v", got.Sub(epoch), again.Sub(epoch))
			}
			if early := p.At(s, again.Add(-1)); early.Phase != health.Undecided {
				t.Errorf("decided early: %+v", early)
			}
			s = p.At(s, again)
			if s.Phase != want || s.Reason != reason || !p.Again(s).IsZero() {
				t.Errorf("got %v %q, want %v %q", s.Phase, s.Reason, want, reason)
			}
		})
	}
}

func TestBreaks(t *testing.T) {
	good := results("success", "success", "success")
	well := at(tasks(), good)
	restarted, startedAgain := tasks(), tasks()
	restarted["main"].Restarts = 1
	startedAgain["main"].StartedAt = second(9)
	for name, c := range map[string]struct {
		at5    health.Event
		want   health.Phase
		after  int // seconds
		reason string
	}{
		"none": {well, health.Healthy, 10, "healthy for 10s"},
		"a check": {at(tasks(), results("failure", "success", "success")), health.Healthy, 19,
			"healthy for 10s"},
		"a restart that is seen": {at(tasks("main pending"), good), health.Healthy, 19, "healthy for 10s"},
		"a failure":              {at(tasks("main failed"), good), health.Unhealthy, 5, `task "main" has failed`},
		"a failed prestart":      {at(tasks("init failed"), good), health.Unhealthy, 5, `task "init" has failed`},
		"a failed poststop":      {at(tasks("bye failed"), good), health.Healthy, 10, "healthy for 10s"},
	} {
		t.Run(name, func(t *testing.T) {
			p := policy(t, nil)
			s := p.Next(p.New(epoch), well, epoch)
			s = p.Next(s, c.at5, second(5))
			s = p.Next(s, well, second(9))
			if c.after > 9 {
				s = p.At(s, second(c.after).Add(-1))
				if s.Phase != health.Undecided {
					t.Fatalf("decided early: %+v", s)
				}
			}
			s = p.At(s, second(c.after))
			if s.Phase != c.want || s.Reason != c.reason {
				t.Errorf("got %v %q, want %v %q", s.Phase, s.Reason, c.want, c.reason)
			}
			if later := p.Next(s, at(tasks("main failed"), nil), second(99)); later != s {
				t.Errorf("the decision did not stay: %+v", later)
			}
		})
	}
	for name, again := range map[string]map[string]*api.TaskState{"a restart": restarted, "a start": startedAgain} {
		p := policy(t, nil)
		s := p.Next(p.Next(p.New(epoch), well, epoch), at(again, good), second(9))
		if got := p.Again(s); s.Phase != health.Undecided || !got.Equal(second(19)) {
			t.Errorf("%s that was not seen: look again %v after the start, want 19s", name, got.Sub(epoch))
		}
	}
	p := policy(t, nil)
	s := p.Next(p.New(epoch), well, second(55))
	if s = p.At(s, second(60)); s.Phase != health.Unhealthy ||
		s.Reason != "not healthy for 10s without a break within 1m0s" {
		t.Errorf("well too late: %v %q", s.Phase, s.Reason)
	}
	s = p.Next(p.New(epoch), well, second(50))
	if s = p.Next(s, health.Event{}, second(99)); s.Phase != health.Healthy {
		t.Errorf("well just in time, and looked at late: %v %q", s.Phase, s.Reason)
	}
}

// seen is one look at an allocation with one task.
type seen struct {
	at, life     int
	well, failed bool
}

// decideByHand looks at the whole history: the first moment at which there was a reason to decide wins.
func decideByHand(history []seen, now, minHealthy, deadline int) health.Phase {
	decision, moment := health.Undecided, now+1
	if deadline <= now {
		decision, moment = health.Unhealthy, deadline
	}
	for _, h := range history {
		if h.failed && h.at < moment {
			decision, moment = health.Unhealthy, h.at
		}
	}
	for i, h := range history {
		if h.failed {
			break // what comes after it comes too late, at the same moment, too
		}
		if !h.well || h.at >= deadline {
			continue
		}
		end := now
		for _, later := range history[i+1:] {
			if !later.well || later.life != h.life {
				end = later.at
				break
			}
		}
		if at := h.at + minHealthy; at <= end && at <= deadline && at <= moment {
			decision, moment = health.Healthy, at
		}
	}
	return decision
}

func TestNextAgainstHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		minHealthy, deadline := rapid.IntRange(0, 6).Draw(t, "min"), rapid.IntRange(1, 20).Draw(t, "deadline")
		group := &api.TaskGroup{Name: new("g"), Tasks: []*api.Task{{Name: "a"}},
			Update: &api.UpdateStrategy{MaxParallel: new(1),
				MinHealthyTime: new(time.Duration(minHealthy) * time.Second), HealthyDeadline: new(
					time.Duration(deadline) * time.Second)}}
		p, ok := health.For(&api.Job{Type: new("service")}, group)
		if !ok {
			t.Fatal("nothing is decided")
		}
		s := p.New(epoch)
		var history []seen
		now, life := 0, 0
		for range rapid.IntRange(1, 15).Draw(t, "looks") {
			now += rapid.IntRange(0, 4).Draw(t, "later")
			look := seen{at: now}
			state := &api.TaskState{State: "pending"}
			switch rapid.SampledFrom([]string{"well", "well", "well", "restarted", "not", "failed"}).Draw(t, "look") {
			case "restarted":
				life++
				fallthrough
			case "well":
				look.well, state.State = true, "running"
			case "failed":
				look.failed, state.State, state.Failed = true, "dead", true
			}
			look.life, state.Restarts = life, uint64(life)
			history = append(history, look)
			s = p.Next(s, health.Event{Tasks: map[string]*api.TaskState{"a": state}}, second(now))
			if want := decideByHand(history, now, minHealthy, deadline); s.Phase != want {
				t.Fatalf("at %d: %v %q, want %v (min %d, deadline %d, %+v)", now, s.Phase, s.Reason, want, minHealthy, deadline,
					history)
			}
			if again := p.Again(s); again.IsZero() != (s.Phase != health.Undecided) || !again.IsZero() &&
				!again.After(second(now)) {
				t.Fatalf("look again %v, decision %v", again, s.Phase)
			}
			if s.Phase == health.Undecided {
				if next := p.Again(s); p.At(s, next).Phase == health.Undecided ||
					p.At(s, next.Add(-1)).Phase != health.Undecided {
					t.Fatalf("looking again at %v decides nothing, or would have earlier", next)
				}
			}
		}
	})
}
