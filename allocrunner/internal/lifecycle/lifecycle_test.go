package lifecycle_test

import (
	"slices"
	"testing"

	"taskapi/allocrunner/internal/lifecycle"
	"taskapi/internal/same"
)

const (
	w = lifecycle.Waiting
	p = lifecycle.Pending
	r = lifecycle.Running
	d = lifecycle.Dead
)

// group is one of every kind of task.
var group = []lifecycle.Task{
	{Name: "init", Hook: lifecycle.Prestart},
	{Name: "proxy", Hook: lifecycle.Prestart, Sidecar: true},
	{Name: "main"},
	{Name: "boss", Leader: true},
	{Name: "hello", Hook: lifecycle.Poststart},
	{Name: "bye", Hook: lifecycle.Poststop},
}

// states reads the phases of the group's tasks in its order; failed names tasks that failed.
func states(phases [6]lifecycle.Phase, failed ...string) map[string]lifecycle.State {
	m := map[string]lifecycle.State{}
	for i, t := range group {
		m[t.Name] = lifecycle.State{Phase: phases[i], Failed: slices.Contains(failed, t.Name)}
	}
	return m
}

// decision is the state and the effects that Next returns.
type decision struct {
	Start, Kill []string
	Ending      lifecycle.Ending
	Done        bool
}

func next(tasks []lifecycle.Task, states map[string]lifecycle.State, was lifecycle.Ending) decision {
	ending, do := was.Next(lifecycle.Group{Tasks: tasks, States: states})
	return decision{do.Start, do.Kill, ending, do.Done}
}

func TestNext(t *testing.T) {
	stopped := lifecycle.Ending{Cause: lifecycle.Stopped}
	for _, tc := range []struct {
		name   string
		states map[string]lifecycle.State
		ending lifecycle.Ending
		want   decision
	}{
		{"prestart first", states([6]lifecycle.Phase{w, w, w, w, w, w}), lifecycle.Ending{},
			decision{Start: []string{"init", "proxy"}}},
		{"main waits for the ephemeral one's end", states([6]lifecycle.Phase{r, r, w, w, w, w}), lifecycle.Ending{},
			decision{}},
		{"main", states([6]lifecycle.Phase{d, r, w, w, w, w}), lifecycle.Ending{},
			decision{Start: []string{"main", "boss"}}},
		{"poststart waits for all of main", states([6]lifecycle.Phase{d, r, r, p, w, w}), lifecycle.Ending{},
			decision{}},
		{"poststart", states([6]lifecycle.Phase{d, r, d, r, w, w}), lifecycle.Ending{},
			decision{Start: []string{"hello"}}},
		{"nothing to do", states([6]lifecycle.Phase{d, r, r, r, d, w}), lifecycle.Ending{},
			decision{}},
		{"the leader's end ends the others", states([6]lifecycle.Phase{d, r, r, d, r, w}), lifecycle.Ending{},
			decision{Kill: []string{"main", "hello"}, Ending: lifecycle.Ending{Cause: lifecycle.LeaderDead,
				Task: "boss"}}},
		{"a failed task ends the leader first", states([6]lifecycle.Phase{d, r, d, r, r, w}, "main"), lifecycle.Ending{},
			decision{Kill: []string{"boss"}, Ending: lifecycle.Ending{Cause: lifecycle.SiblingFailed, Task: "main"}}},
		{"a dead leader outweighs a failed sibling", states([6]lifecycle.Phase{d, r, d, d, r, w}, "main"), lifecycle.Ending{},
			decision{Kill: []string{"hello"}, Ending: lifecycle.Ending{Cause: lifecycle.LeaderDead, Task: "boss"}}},
		{"a failed prestart task ends all", states([6]lifecycle.Phase{d, r, w, w, w, w}, "init"), lifecycle.Ending{},
			decision{Kill: []string{"boss"}, Ending: lifecycle.Ending{Cause: lifecycle.SiblingFailed, Task: "init"}}},
		{"the first of two that failed is the reason", states([6]lifecycle.Phase{d, r, d, r, d, w}, "main", "hello"),
			lifecycle.Ending{},
			decision{Kill: []string{"boss"}, Ending: lifecycle.Ending{Cause: lifecycle.SiblingFailed, Task: "main"}}},
		{"a failed sidecar ends all", states([6]lifecycle.Phase{d, d, r, r, d, w}, "proxy"), lifecycle.Ending{},
			decision{Kill: []string{"boss"}, Ending: lifecycle.Ending{Cause: lifecycle.SiblingFailed, Task: "proxy"}}},
		{"a failed poststart task ends all", states([6]lifecycle.Phase{d, r, r, r, d, w}, "hello"), lifecycle.Ending{},
			decision{Kill: []string{"boss"}, Ending: lifecycle.Ending{Cause: lifecycle.SiblingFailed, Task: "hello"}}},
		{"a sidecar that starts, or restarts, keeps main back", states([6]lifecycle.Phase{d, p, w, w, w, w}),
			lifecycle.Ending{},
			decision{}},
		{"a sidecar that restarts hurts nobody afterwards", states([6]lifecycle.Phase{d, p, r, r, d, w}), lifecycle.Ending{},
			decision{}},
		{"sidecars come last", states([6]lifecycle.Phase{d, r, d, d, d, w}), stopped,
			decision{Kill: []string{"proxy"}, Ending: stopped}},
		{"poststop when all others are dead", states([6]lifecycle.Phase{d, d, d, d, d, w}), stopped,
			decision{Start: []string{"bye"}, Ending: stopped}},
		{"a stop does not kill poststop", states([6]lifecycle.Phase{d, d, d, d, d, r}), stopped,
			decision{Ending: stopped}},
		{"an abort does", states([6]lifecycle.Phase{d, d, d, d, d, r}), lifecycle.Ending{Cause: lifecycle.Aborted},
			decision{Kill: []string{"bye"}, Ending: lifecycle.Ending{Cause: lifecycle.Aborted}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			same.As(t, tc.want, next(group, tc.states, tc.ending), "decision")
		})
	}
	over := states([6]lifecycle.Phase{d, d, d, d, d, d})
	if got := next(group, over, stopped); !got.Done || got.Start != nil || got.Kill != nil {
		t.Errorf("all dead: got %+v, want over and nothing to do", got)
	}
}

func TestSidecarsAloneAreEnded(t *testing.T) {
	tasks := []lifecycle.Task{{Name: "side", Hook: lifecycle.Prestart, Sidecar: true}, {Name: "main"}}
	got := next(tasks, map[string]lifecycle.State{"side": {Phase: r}, "main": {Phase: d}}, lifecycle.Ending{})
	want := decision{Kill: []string{"side"}, Ending: lifecycle.Ending{Cause: lifecycle.MainTasksDead}}
	same.As(t, want, got, "decision")
}

// TestAFailedPoststopTaskIsNoReason to end those beside it: they clean up whatever becomes of each other.
func TestAFailedPoststopTaskIsNoReason(t *testing.T) {
	tasks := []lifecycle.Task{{Name: "main"}, {Name: "first", Hook: lifecycle.Poststop},
		{Name: "second", Hook: lifecycle.Poststop}}
	got := next(tasks, map[string]lifecycle.State{"main": {Phase: d}, "first": {Phase: d, Failed: true},
		"second": {Phase: w}}, lifecycle.Ending{})
	same.As(t, decision{Start: []string{"second"}}, got, "decision")
}

func TestClientStatus(t *testing.T) {
	for _, tc := range []struct {
		states map[string]lifecycle.State
		want   string
	}{
		{map[string]lifecycle.State{"a": {Phase: d, Failed: true}, "b": {Phase: r}}, "failed"},
		{map[string]lifecycle.State{"a": {Phase: d}, "b": {Phase: r}, "c": {Phase: p}}, "running"},
		{map[string]lifecycle.State{"a": {Phase: d}, "b": {Phase: p}}, "pending"},
		{map[string]lifecycle.State{"a": {Phase: d}, "b": {Phase: w}}, "pending"},
		{map[string]lifecycle.State{"a": {Phase: p}, "b": {Phase: p, Stopped: true}}, "running"},
		{map[string]lifecycle.State{"a": {Phase: d}, "b": {Phase: d}}, "complete"},
	} {
		g := lifecycle.Group{States: tc.states}
		for name := range tc.states {
			g.Tasks = append(g.Tasks, lifecycle.Task{Name: name})
		}
		if got, _ := g.ClientStatus(); got != tc.want {
			t.Errorf("%v: got %s, want %s", tc.states, got, tc.want)
		}
	}
}

// TestEnded is about all but the poststop tasks.
func TestEnded(t *testing.T) {
	for name, tc := range map[string]struct {
		states map[string]lifecycle.State
		want   bool
	}{
		"nothing has begun":    {states([6]lifecycle.Phase{w, w, w, w, w, w}), false},
		"one waits to restart": {states([6]lifecycle.Phase{d, d, p, d, d, w}), false},
		"a sidecar is left":    {states([6]lifecycle.Phase{d, r, d, d, d, w}), false},
		"poststop is to come":  {states([6]lifecycle.Phase{d, d, d, d, d, w}), true},
		"poststop runs":        {states([6]lifecycle.Phase{d, d, d, d, d, r}, "main"), true},
		"all have ended":       {states([6]lifecycle.Phase{d, d, d, d, d, d}), true},
	} {
		same.As(t, tc.want, (lifecycle.Group{Tasks: group, States: tc.states}).Ended(), name)
	}
}

// TestServes is about main tasks and sidecars.
func TestServes(t *testing.T) {
	var serve []string
	for _, task := range group {
		if task.Serves() {
			serve = append(serve, task.Name)
		}
	}
	if want := []string{"proxy", "main", "boss"}; !slices.Equal(serve, want) {
		t.Errorf("%v serve, want %v", serve, want)
	}
}
