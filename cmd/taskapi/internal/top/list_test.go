package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/internal/must"
	"taskapi/internal/same"
)

// allocationOf returns one with a name, an age and tasks that run.
func allocationOf(job string, index int, age time.Duration, tasks int) *api.Allocation {
	group := "web"
	a := &api.Allocation{
		ID: fmt.Sprintf("%s%07d-7053-4bd5-901d-ebabf09d52fb", job[:1], index), JobID: job, TaskGroup: group,
		Name: fmt.Sprintf("%s.%s[%d]", job, group, index), ClientStatus: "running", DesiredStatus: "run",
		CreateTime: start.Add(time.Minute - age).UnixNano(), TaskStates: map[string]*api.TaskState{},
		Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: &group}}},
	}
	for i := range tasks {
		name := fmt.Sprintf("task-%d", i)
		a.Job.TaskGroups[0].Tasks = append(a.Job.TaskGroups[0].Tasks, &api.Task{Name: name})
		a.TaskStates[name] = &api.TaskState{State: "running", StartedAt: start, Restarts: uint64(i)}
	}
	return a
}

// manyFound are four allocations: two run, one of a taskapi that does not answer, and one has ended.
func manyFound() (found []Found, fakes []*fake) {
	ended := allocationOf("batch", 0, 3*time.Hour, 1)
	ended.ClientStatus = "complete"
	ended.TaskStates["task-0"] = &api.TaskState{State: "dead", StartedAt: start, Events: []*api.TaskEvent{
		{Time: start.UnixNano(), Type: api.TaskTerminated, DisplayMessage: "Exit Code: 0",
			Details: map[string]string{"exit_code": "0", "signal": "0"}}}}
	for _, a := range []*api.Allocation{
		ended, allocationOf("shop", 0, 26*time.Hour, 2), allocationOf("shop", 1, time.Minute, 2),
		allocationOf("lost", 0, time.Hour, 1),
	} {
		f := newFake()
		f.snapshot.Alloc = a
		fakes = append(fakes, f)
		found = append(found, f.foundAs(a.ID))
	}
	found[0].Ended = &Snapshot{Alloc: ended, Ended: true}
	fakes[3].err = errors.New("connection refused")
	return found, fakes
}

// newFullList returns a list of these that has seen everything once.
func newFullList(t *testing.T) (*screen, []Found, []*fake) {
	t.Helper()
	s := newListScreen(t, "")
	found, fakes := manyFound()
	s.send(foundMsg{all: found})
	for i, f := range fakes {
		s.fake = f
		w := s.watches[i]
		if w.presence == ended {
			continue
		}
		snapshot, err := f.Allocation(t.Context(), 0)
		s.send(snapshotMsg{w, snapshot, err}) // with an error, it is what was saved
		usage, usageErr := f.Stats(t.Context())
		checks, checksErr := f.Checks(t.Context())
		s.send(pollMsg{w, usage, usageErr, checks, checksErr, nil})
	}
	return s, found, fakes
}

// TestList shows all allocations: those that run before those that have ended.
func TestList(t *testing.T) {
	s := newListScreen(t, "")
	s.has("looking for allocations")
	s.send(foundMsg{err: errors.New("permission denied")})
	s.has("permission denied")

	s, _, _ = newFullList(t)
	s.golden("list")
	s.send(tea.WindowSizeMsg{Width: 200, Height: 20})
	s.golden("list-wide")
	s.send(tea.WindowSizeMsg{Width: 40, Height: 10})
	s.golden("list-small")
}

// TestListShowsParents: a job that starts children has no tasks, but its children that have not ended.
func TestListShowsParents(t *testing.T) {
	s := newListScreen(t, "")
	var found []Found
	var fakes []*fake
	for i, parent := range []string{"", "tick", "tick", "tick", "other"} {
		f := newFake()
		f.snapshot.Alloc = allocationOf(fmt.Sprintf("%dtick", i), i, time.Hour, 1)
		if f.snapshot.Alloc.Job.ParentID = &parent; parent == "" {
			f.snapshot.Alloc.JobID, f.snapshot.Alloc.Job.Periodic = "tick", &api.PeriodicConfig{}
		}
		fakes = append(fakes, f)
		found = append(found, f.foundAs(f.snapshot.Alloc.ID))
	}
	found[1].Ended = &Snapshot{Alloc: fakes[1].snapshot.Alloc, Ended: true}
	s.send(foundMsg{all: found})
	for i, f := range fakes {
		if found[i].Ended == nil {
			snapshot, err := f.Allocation(t.Context(), 0)
			s.send(snapshotMsg{s.watches[i], snapshot, err})
		}
	}
	s.has("parent 2", "tasks 3/4")
	s.watches[0].Launches = func() []*api.TaskEvent {
		return []*api.TaskEvent{{Type: "Launched", Time: start.UnixNano(), DisplayMessage: "tick/periodic-1"}}
	}
	s.watches[1].Launches = s.watches[0].Launches // as each has, and only a parent's is asked
	lines := strings.Join(append(s.eventLines(s.watches[0], ""), s.eventLines(s.watches[1], "")...), "\n")
	if !strings.Contains(lines, "Launched        tick/periodic-1") || strings.Count(lines, "Launched") != 1 {
		t.Errorf("events of a parent and a child:\n%s", lines)
	}
}

// TestListKeepsItsChoice: the chosen allocation stays chosen while others come, go and are sorted, and a neighbour is
// chosen when it goes itself.
func TestListKeepsItsChoice(t *testing.T) {
	s, found, fakes := newFullList(t)
	s.keys("down", "down")
	s.has(">shop.web[0]")
	for range listOrders {
		s.keys("p")
		s.has(">shop.web[0]")
	}
	s.send(foundMsg{all: found[1:]})
	s.has(">shop.web[0]")
	s.lacks("batch.web[0]")
	more := append(slices.Clone(found), fakes[1].foundAs("new"))
	s.send(foundMsg{all: more})
	s.has(">shop.web[0]", "batch.web[0]", "connecting")

	s.keys("/")
	s.typed("web[1]")
	s.has(">shop.web[1]")
	s.lacks("shop.web[0]")
	s.keys("enter", "esc")
	s.has(">shop.web[1]", "shop.web[0]")
	s.keys("/", "%")
	s.has("no allocation is named like %")
	s.keys("enter", "enter", "S")
	s.has("there is no allocation")
	s.keys("esc")

	s.send(foundMsg{all: slices.DeleteFunc(slices.Clone(more), func(f Found) bool { return f.ID == found[2].ID })})
	s.lacks("shop.web[1]")
	if !s.list.has() || !strings.Contains(s.text(), ">") {
		t.Error("nothing is chosen after the chosen one has gone")
	}
}

// TestListOpensOne and comes back to it; only the one that is shown is polled meanwhile.
func TestListOpensOne(t *testing.T) {
	s, found, _ := newFullList(t)
	s.keys("down", "down", "enter")
	s.has("shop.web[0]", "1 Output of task-0")
	for i, w := range s.watches {
		cmd := s.send(pollMsg{watch: w})
		if polled := w.polling; polled != (found[i].ID == s.inside.ID) || polled && cmd == nil {
			t.Errorf("%s is polled inside of %s: %t", w.name(), s.inside.name(), polled)
		}
	}
	s.keys("esc")
	s.has(">shop.web[0]", "2 of 4")
	for _, w := range s.watches {
		if w.polling == (w.presence == ended) {
			t.Errorf("%s, %v, is polled in the list: %t", w.name(), w.presence, w.polling)
		}
	}
	s.keys("u")
	s.has("no key u")
	s.keys("r")
	s.has("r is a key inside of an allocation")
}

// TestOnce prints all rows as text, and the same for programs.
func TestOnce(t *testing.T) {
	found, _ := manyFound()
	for i := range 100 { // more than a screen has
		a := allocationOf("many", i, time.Minute, 1)
		f := newFake()
		f.snapshot.Alloc = a
		found = append(found, f.foundAs(a.ID))
	}
	c := Config{Find: func(ctx context.Context) ([]Found, error) { return found, nil }, Clock: func() time.Time {
		return start.Add(time.Minute)
	}, Terminal: Terminal{Lines: true}}
	once, err := Look(t.Context(), c)
	must.OK(t, err)
	text := once.Text(80, false)
	rows := strings.Split(text, "\n")
	if len(rows) != 3+len(found)+1 {
		t.Errorf("%d rows for %d allocations", len(rows), len(found))
	}
	for _, row := range rows {
		if len([]rune(row)) > 80 || strings.ContainsAny(row, "\x1b\r▁") {
			t.Errorf("row %q", row)
		}
	}
	for _, want := range []string{"shop.web[0]", "many.web[99]", "lost.web[0]", "102 of 104 run"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	all := once.Allocations()
	i := slices.IndexFunc(all, func(a Allocation) bool { return a.Name == "shop.web[0]" })
	if len(all) != len(found) || i < 0 || all[i].TasksRunning != 2 || len(all[i].Tasks) != 2 ||
		*all[i].CPUPercent != 107.46 {
		t.Errorf("for programs: %+v", all)
	}
	if j := slices.IndexFunc(all, func(a Allocation) bool { return a.Error == "connection refused" }); j < 0 {
		t.Error("for programs, none says why it can't be read")
	}
	if _, err := json.Marshal(all); err != nil {
		t.Error(err)
	}

	c.Start = found[0].ID
	once, err = Look(t.Context(), c)
	must.OK(t, err)
	text = once.Text(60, false)
	if !strings.Contains(text, "batch.web[0]") || !strings.Contains(text, "task-0  complete (0)") {
		t.Errorf("of one:\n%s", text)
	}
}

// TestLimits: a wide screen shows how much of its limit a memory is, unless a task has none, or the kernel none of it.
func TestLimits(t *testing.T) {
	alloc := allocationOf("shop", 0, time.Hour, 2)
	alloc.AllocatedResources = &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{}}
	w := &watch{presence: running, alloc: alloc, usage: &api.AllocResourceUsage{
		ResourceUsage: &api.ResourceUsage{MemoryStats: &api.MemoryStats{RSS: 30 << 20}},
		Tasks:         map[string]*api.TaskResourceUsage{"task-0": {}, "task-1": {}},
	}}
	shown := func(width int) string {
		f := w.figures()
		return (&Model{width: width}).ofLimit(f.memory, f.limit)
	}
	give := func(task string, mebibytes int64) {
		alloc.AllocatedResources.Tasks[task] = &api.AllocatedTaskResources{
			Memory: api.AllocatedMemoryResources{MemoryMB: mebibytes}}
	}
	give("task-0", 20)
	same.As(t, "", shown(100), "with a task that has no limit")
	give("task-1", 30)
	same.As(t, " 60%", shown(100), "of 50 MiB")
	same.As(t, "", shown(99), "on a narrow screen")
	alloc.TaskStates["task-1"].Events = []*api.TaskEvent{
		{Type: api.TaskStarted, Details: map[string]string{"unlimited": "no cgroup"}}}
	same.As(t, "", shown(100), "with a limit that nothing enforces")
}

// TestPortsAndChecksBesideTheirTasks: a port and a check are shown beside the task that they belong to, also in a group
// of several main tasks, and beside none if several may have them.
func TestPortsAndChecksBesideTheirTasks(t *testing.T) {
	alloc := allocationOf("shop", 0, time.Hour, 3)
	group := groupOf(alloc)
	network, shared := &api.NetworkResource{}, &api.AllocatedResources{}
	for i, label := range []string{"env", "con-fig", "listed", "service", "check", "shared", "unused", "env_2"} {
		network.DynamicPorts = append(network.DynamicPorts, api.Port{Label: label})
		shared.Shared.Ports = append(shared.Shared.Ports, api.PortMapping{Label: label, Value: i})
	}
	group.Networks, alloc.AllocatedResources = []*api.NetworkResource{network}, shared
	group.Services = []*api.Service{{Name: "a", PortLabel: "service", TaskName: "task-1"},
		{Name: "b", PortLabel: "check"}, {Name: "c", PortLabel: "con-fig"}, {Name: "d", PortLabel: "unused"},
		{Name: "portless", TaskName: "task-0"}, {Name: "f"}}
	use := "${NOMAD_ADDR_shared}"
	group.Tasks[0].Env = map[string]string{"ADDRESS": ":${NOMAD_PORT_env}", "OTHER": use}
	group.Tasks[1].Config = map[string]any{"command": "x", "args": []any{"$NOMAD_HOST_PORT_con_fig", use,
		"$NOMAD_IP_check"}}
	group.Tasks[2].Config = map[string]any{"ports": []any{"listed"}}
	group.Tasks[2].Services = []*api.Service{{Name: "e", PortLabel: "env_2"}}
	w := &watch{presence: running, alloc: alloc, checks: api.AllocCheckStatuses{
		"1": {Check: "own", Service: "a", Task: "task-0", Status: "success"},
		"2": {Check: "of b", Service: "b", Status: "failure"},
		"3": {Check: "of c", Service: "c", Status: "success"}, "4": {Check: "of d", Service: "d", Status: "success"},
		"5": {Check: "of a", Service: "a", Status: "success"}, "6": {Check: "of f", Service: "f", Status: "success"}}}
	m := &Model{}
	var got []string
	for _, of := range m.tasksOf(w) {
		got = append(got, fmt.Sprintf("%s: %s; %d/%d", of.name, of.ports, of.passing, of.checks))
	}
	want := []string{"task-0: env 0; 1/1", "task-1: con-fig 1, service 3, check 4; 2/3", "task-2: listed 2, env_2 7; 0/0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if lines := m.checkLines(w, "task-1"); len(lines) != 3 || !strings.Contains(lines[0], "of b") {
		t.Errorf("checks of task-1: %q", lines)
	}
	if lines := m.checkLines(w, ""); len(lines) != 6 {
		t.Errorf("all checks: %q", lines)
	}
}
