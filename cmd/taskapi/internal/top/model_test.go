package top

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/same"
)

// TestScreens are the screens of 80 by 24, as text.
func TestScreens(t *testing.T) {
	for name, keys := range map[string][]string{
		"output":  {},
		"events":  {"2"},
		"checks":  {"3"},
		"details": {"4"},
		"zoomed":  {"down", "enter"},
		"help":    {"?"},
		"stop":    {"S"},
		"signal":  {"s", "enter"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScreen(t)
			s.keys(keys...)
			s.golden(name)
		})
	}
}

// TestPresence says that a taskapi is away, that it is back, and that the allocation has ended, and keeps what was
// seen last.
func TestPresence(t *testing.T) {
	s := newBlankScreen(t, &fake{err: errors.New("connection refused")})
	s.snapshot(Snapshot{}, s.fake.err)
	s.has("unknown", "connection refused")

	s = newScreen(t)
	s.fake.err = errors.New("connection refused")
	if s.snapshot(Snapshot{}, s.fake.err) == nil {
		t.Error("it does not try again")
	}
	s.send(pollMsg{watch: s.watches[0], usageErr: s.fake.err, checksErr: s.fake.err})
	s.send(clockMsg(start.Add(75 * time.Second)))
	s.golden("away")
	s.keys("r")
	s.has("no taskapi answers now")

	s.snapshot(Snapshot{Alloc: allocation(), Index: 1}, nil)
	s.lacks("AWAY")
	s.has("running healthy")

	alloc := allocation()
	alloc.ClientStatus = "complete"
	for _, state := range alloc.TaskStates {
		state.State = "dead"
	}
	s.snapshot(Snapshot{Alloc: alloc, Ended: true}, nil)
	s.golden("ended")
	s.snapshot(Snapshot{}, s.fake.err)
	s.has("  complete  ")
	for _, key := range []string{"r", "R", "s", "x", "S"} {
		s.keys(key)
		s.has("the allocation has ended")
	}

	s.send(foundMsg{all: []Found{s.fake.foundAs(allocation().ID)}})
	if !s.watches[0].reading {
		t.Error("one that may be run again is not looked at")
	}
	s.snapshot(Snapshot{Alloc: allocation(), Index: 1}, nil) // it is run again
	s.lacks("last that was seen")
	if s.inside.opened == "" || s.inside.output().note != "opening" {
		t.Error("the output of one that is run again is not opened")
	}

	s.send(foundMsg{})
	s.has("The allocation has been removed")
	s.keys("esc")
	s.has("no allocations; 'taskapi run'")
}

// TestActions ask first, and do nothing without a yes.
func TestActions(t *testing.T) {
	for _, tc := range []struct {
		keys []string
		want string
	}{
		{[]string{"r", "y"}, "restart server"},
		{[]string{"R", "y"}, "restart "},
		{[]string{"S", "y"}, "stop"},
		{[]string{"t", "y"}, "pause server pause"},
		{[]string{"t", "n"}, ""},
		{[]string{"k", "t"}, ""}, // it has ended
		{[]string{"s", "enter", "y"}, "signal server SIGHUP"},
		{[]string{"s", "s", "i", "g", "q", "u", "i", "x", "backspace", "t", "enter", "y"}, "signal server SIGQUIT"},
		{[]string{"s", "enter", "enter"}, ""},
		{[]string{"r", "n"}, ""},
		{[]string{"r", "enter"}, ""},
		{[]string{"S", "esc"}, ""},
		{[]string{"S", "S"}, ""},
		{[]string{"s", "esc"}, ""},
		{[]string{"s", "ctrl+u", "enter"}, ""},
		{[]string{"s", "ctrl+u", "backspace"}, ""},
		{[]string{"x", "ctrl+w", "enter"}, ""},
		{[]string{"y"}, ""},
		{[]string{"esc", "S", "y"}, "stop"},
		{[]string{"esc", "R", "y"}, "restart "},
		{[]string{"esc", "R", "enter"}, ""},
	} {
		s := newScreen(t)
		s.keys(tc.keys...)
		same.As(t, tc.want, strings.Join(s.fake.done, ", "), tc.keys, ": did")
		if s.dialog != nil {
			t.Errorf("%v: still asks", tc.keys)
		}
		if tc.want != "" {
			s.has(": done")
		}
	}
	for state, want := range map[interfaces.ScheduleState]struct{ asks, does string }{
		interfaces.ScheduleForcedPause: {"Start task server?", "pause server scheduled"},
		interfaces.SchedulePause:       {"Run task server now, whatever its schedule says?", "pause server run"},
	} {
		s := newScreen(t)
		s.watches[0].alloc.TaskStates["server"] = &api.TaskState{State: "pending", Events: []*api.TaskEvent{{
			Type: interfaces.EventPausing, Details: map[string]string{interfaces.DetailSchedule: string(state)}}}}
		s.keys("t")
		s.has(want.asks)
		s.keys("y")
		same.As(t, want.does, strings.Join(s.fake.done, ", "), state, ": did")
	}
	s := newScreen(t)
	s.fake.refuse = errors.New("Task not running")
	s.keys("r", "y")
	s.has("restart task server: Task not running")
	s.send(clockMsg(s.now.Add(noticeTime + time.Second)))
	s.lacks("Task not running")
}

// TestQuestionKeepsItsTask: what is asked is about the task that was chosen then, whatever becomes of the table.
func TestQuestionKeepsItsTask(t *testing.T) {
	s := newScreen(t)
	s.keys("p", "p") // by memory: worker, server, migrate
	s.keys("g", "r")
	s.has("Restart task worker?")
	s.inside.chosen = "server"
	s.send(pollMsg{watch: s.watches[0]})
	s.keys("y")
	same.As(t, "restart worker", strings.Join(s.fake.done, ", "), "did")
}

// TestPasteIsNoAnswer: what a terminal pastes is text for a prompt, and nothing else.
func TestPasteIsNoAnswer(t *testing.T) {
	s := newScreen(t)
	s.keys("S")
	s.send(tea.PasteMsg{Content: "y"})
	if len(s.fake.done) > 0 || s.dialog == nil {
		t.Errorf("a paste answered the question: %v", s.fake.done)
	}
	s.keys("n")
	s.send(tea.PasteMsg{Content: "q"})
	s.keys("s")
	s.send(tea.PasteMsg{Content: "SIG\x1b[2JUSR1\n" + strings.Repeat("x", 10*maxAnswer)})
	s.keys("enter", "y")
	if got := strings.Join(s.fake.done, ", "); !strings.HasPrefix(got, "signal server SIG[2JUSR1XXX") ||
		len(got) > maxAnswer+20 {
		t.Errorf("did %q", got)
	}
}

// TestEveryKey has its own meaning, and shows a screen that fits, on every panel and on small terminals, too.
func TestEveryKey(t *testing.T) {
	seen := map[string]string{}
	for _, b := range bindings() {
		if b.show == "" || b.does == "" {
			t.Errorf("the help does not name %v", b.keys)
		}
		for _, key := range b.keys {
			if other, twice := seen[key]; twice {
				t.Errorf("%s is for %q and %q", key, b.does, other)
			}
			seen[key] = b.does
			same.As(t, key, keyOf(key).String(), "the test's key")
			for _, before := range []string{"1", "2", "3", "4", "tab", "enter", "?", "esc"} {
				s := newScreen(t)
				s.send(keyOf(before))
				s.send(keyOf(key))
				s.rows()
				s.send(tea.WindowSizeMsg{Width: 7, Height: 3})
				s.rows()
			}
		}
	}
	s := newScreen(t)
	s.keys("%")
	s.has("no key %; ? shows all")
}

// TestMoving moves in the tasks or in the panel, whichever has the focus.
func TestMoving(t *testing.T) {
	s := newScreen(t)
	for keys, want := range map[string]string{"": "migrate", "down": "server", "end": "worker", "down up": "migrate",
		"G k": "server", "end g": "migrate",
		"pgdown": "worker", "/ w enter": "worker", "/ w backspace enter end": "worker", "/ w esc": "worker"} {
		s.inside.filter = ""
		s.inside.arrange()
		s.inside.pick(0)
		s.keys(strings.Fields(keys)...)
		if s.inside.chosen != want {
			t.Errorf("%q: %s is chosen, want %s", keys, s.inside.chosen, want)
		}
	}
	s.inside.filter = ""
	s.inside.arrange()
	s.keys("end")
	s.has("line 100", "following")
	s.keys("tab", "up")
	s.lacks("line 100")
	s.lacks("following")
	s.written("later\n")
	s.lacks("later")
	s.keys("f")
	s.has("later", "following")
	s.keys("home")
	s.has("line 1\n", "of 101")
	s.keys("pgdown", "pgup", "end")
	s.has("following")
	if s.inside.chosen != "worker" {
		t.Errorf("%s is chosen", s.inside.chosen)
	}
	s.keys("right")
	s.has("column 17")
	s.keys("left", "left", "esc", "1", "/", "n", "o", "n", "e")
	s.has("no task is named like none")
	s.keys("r", "enter", "r")
	s.has("there is no task")
	s.keys("esc")
	s.has(">worker")
}

// TestOrders sort the table, and keep the chosen task.
func TestOrders(t *testing.T) {
	s := newScreen(t)
	s.keys("end")
	var got []string
	for range orders {
		var names []string
		for _, task := range s.inside.rows {
			names = append(names, task.name)
		}
		got = append(got, strings.Join(names, " "))
		if s.inside.rows[s.inside.cursor].name != "worker" {
			t.Errorf("by %s, %s is chosen", orders[s.inside.order].name, s.inside.rows[s.inside.cursor].name)
		}
		s.keys("p")
	}
	want := []string{"migrate server worker", "worker server migrate", "worker server migrate", "worker migrate server",
		"migrate server worker"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

// TestSearch finds texts in the output, also in what comes later, and goes around.
func TestSearch(t *testing.T) {
	s := newScreen(t)
	s.keys("end", "tab", "/")
	s.typed("Line 7")
	s.keys("enter")
	s.has("no match for Line 7")
	s.keys("/")
	s.typed("line 7")
	s.keys("enter")
	s.has("match 11 of 11", "line 79\n")
	s.keys("n")
	s.has("match 1 of 11", "line 7\n", "began again")
	s.keys("N")
	s.has("match 11 of 11")
	s.keys("N")
	s.has("match 10 of 11")
	s.written("another line 7\n")
	s.has("match 10 of 12")
	s.keys("esc", "n")
	if s.dialog == nil {
		t.Error("n without a search does not ask for one")
	}
}

// TestStreams shows both streams with a mark, or one of them, and says what of the output is not there.
func TestStreams(t *testing.T) {
	s := newScreen(t)
	s.has("  GET /\n  GET /cart\n! warning: slow\n")
	s.keys("e")
	s.has("Output of server (stdout)", "\nGET /\nGET /cart\n")
	s.lacks("warning")
	s.keys("e")
	s.has("Output of server (stderr)", "\nwarning: slow")
	s.keys("e")
	s.has("! warning: slow", "  GET /cart")
	s.send(outputMsg{choice: s.choice, output: &fakeOutput{}, chunk: Chunk{Text: []byte("more\n"), Gap: true}})
	s.has("[output is missing here", "  more")
	delete(s.fake.outputs, "worker stdout")
	s.keys("down")
	s.has("not available")
	late := outputMsg{choice: s.choice - 1, output: &fakeOutput{}, chunk: Chunk{Text: []byte("late\n")}}
	if s.send(late) != nil {
		t.Error("the output of a task that is not chosen any more is read on")
	}
	s.lacks("late")
}

// TestOnly shows the events and checks of the chosen task alone.
func TestOnly(t *testing.T) {
	s := newScreen(t)
	s.keys("2", "a")
	s.has("Events of server", "08:00:02  Started")
	s.lacks("Terminated")
	s.keys("3", "down")
	s.has("shop/deep")
	s.lacks("shop/alive")
	s.keys("a")
	s.has("shop/alive")
}

// TestSizes: a screen of any size fits, and a question can be read where there are two rows.
func TestSizes(t *testing.T) {
	for _, keys := range []string{"", "enter", "4", "esc", "?", "/ x", "esc / x"} {
		s := newScreen(t)
		s.keys(strings.Fields(keys)...)
		for _, width := range []int{1, 2, 3, 5, 8, 13, 19, 20, 21, 29, 40, 41, 59, 60, 61, 75, 76, 77, 99, 100, 131, 132,
			200} {
			for _, height := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 23, 24, 40} {
				s.send(tea.WindowSizeMsg{Width: width, Height: height})
				if rows := s.rows(); len(rows) != height {
					t.Fatalf("%d by %d: %d rows", width, height, len(rows))
				}
			}
		}
	}
	s := newScreen(t)
	s.send(tea.WindowSizeMsg{})
	if content := s.View().Content; content != "" {
		t.Errorf("no terminal shows %q", content)
	}
	s.send(tea.WindowSizeMsg{Width: 40, Height: 12})
	s.golden("small")
	s.send(tea.WindowSizeMsg{Width: 30, Height: 2})
	s.keys("r")
	s.has("Restart task server? y/N")
}

// TestColours are those of the terminal, and none at all without.
func TestColours(t *testing.T) {
	s := newScreen(t)
	s.keys("3", "tab", "/", "h", "enter")
	if plain := s.View().Content; regexp.MustCompile(`\x1b\[([0-9;]*;)?[349][0-9][;m]`).MatchString(plain) {
		t.Errorf("colours without Colour: %q", plain)
	}
	s.Terminal.Colour, s.stale = true, true
	if !strings.Contains(s.View().Content, "\x1b[31m") {
		t.Error("no red for what fails")
	}
}

// TestHostileNames are shown, and steer nothing.
func TestHostileNames(t *testing.T) {
	s := newScreen(t)
	alloc := allocation()
	evil := "\x1b]0;title\x07\u202eevil\x9b2J"
	alloc.Job.TaskGroups[0].Tasks[0].Name = evil
	alloc.TaskStates[evil], alloc.JobID, alloc.Name = alloc.TaskStates["migrate"], evil, evil
	alloc.ClientStatus = evil
	s.watches[0].Dir = evil
	alloc.Job.TaskGroups[0].Tasks[1].User = evil
	alloc.Job.TaskGroups[0].Tasks[1].Config = map[string]any{"command": evil, "args": []any{evil, "界\n" + lines(1000)}}
	alloc.TaskStates["server"].Events[0].Details = map[string]string{"exit_code": evil}
	alloc.AllocatedResources = &api.AllocatedResources{Shared: api.AllocatedSharedResources{
		Ports: []api.PortMapping{{Label: evil, Value: 80}},
	}}
	s.snapshot(Snapshot{Alloc: alloc, Index: 1}, nil)
	for _, width := range []int{80, 200} {
		s.send(tea.WindowSizeMsg{Width: width, Height: 24})
		for _, key := range []string{"1", "2", "3", "4", "s", "esc", "/", "esc", "S", "esc", "R", "esc"} {
			s.keys(key)
			s.has("^[]0;title^G<202e>evil")
		}
	}
	s.keys("esc")
	s.has("^[]0;title^G<202e>evil", "DATA DIRECTORY", "界")
	s.keys("enter")
	s.send(actionMsg{"x", errors.New("refused \x1b[2J")})
	s.keys("esc")
}

// TestManyTasks are scrolled through, and the chosen one is in sight.
func TestManyTasks(t *testing.T) {
	alloc := allocation()
	for i := range 500 {
		name := fmt.Sprintf("task-%03d", i)
		alloc.Job.TaskGroups[0].Tasks = append(alloc.Job.TaskGroups[0].Tasks, &api.Task{Name: name})
		alloc.TaskStates[name] = &api.TaskState{State: "running", StartedAt: start}
	}
	s := newBlankScreen(t, &fake{snapshot: Snapshot{Alloc: alloc, Index: 1}})
	s.look()
	s.has("tasks 502/503")
	for _, key := range []string{"pgdown", "pgdown", "up", "end", "pgup", "home", "down"} {
		s.send(keyOf(key))
		s.has(">" + s.inside.chosen)
	}
	s.send(keyOf("/"))
	for _, digit := range "499" {
		s.send(keyOf(string(digit)))
	}
	s.send(keyOf("enter"))
	s.has(">task-499", "filter: 499")
	s.send(keyOf("esc"))
	s.has(">task-499", "task-498")
}

// TestEndedWork: nothing that a screen has begun lasts longer than the screen.
func TestEndedWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWork(t.Context())
		f := &fake{snapshot: Snapshot{Alloc: allocation(), Index: 7}}
		m := newModel(Config{Clock: func() time.Time { return start }}, w)
		of := newWatch(f.foundAs("x"), start)
		cmds := []tea.Cmd{m.readAllocation(of, 0, time.Hour), m.poll(of, time.Hour), m.find(time.Hour),
			m.openOutput(t.Context(), of, 0, "server", bothStreams, 0)}
		done := make(chan tea.Msg, len(cmds)+1)
		for _, cmd := range cmds {
			go func() { done <- cmd() }()
		}
		synctest.Wait()
		began := time.Now()
		w.Close()
		for range cmds {
			<-done
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("they were waited for %v", took)
		}
		if msg := m.poll(of, 0)(); msg != nil {
			t.Errorf("after the end, %v was read", msg)
		}
	})
}

// TestBars draws the most of each time, by the clock, to a scale of round numbers.
func TestBars(t *testing.T) {
	h := &history{}
	at := start
	for _, cpu := range []float64{0, 1, 9, 4, 10, 3} { // two samples a bar
		h.add(at, cpu, uint64(cpu*(1<<20)))
		at = at.Add(bucketTime / 2)
	}
	last := at.Add(-1)
	same.As(t, "  ▁██", h.cpuBars(last, 5, bars), "now")
	if got, want := h.memoryBars(last, 3, asciiBars), "_++"; got != want { // of 16 MiB
		t.Errorf("got %q, want %q", got, want)
	}
	same.As(t, "▁██  ", h.cpuBars(last.Add(2*bucketTime), 5, bars), "later")
	h.add(last.Add(2*bucketTime), 150, 0)
	if got, want := h.cpuBars(last.Add(2*bucketTime), 5, bars), "▁▁▁ ▆"; got != want { // of 200 %
		t.Errorf("with a rest: got %q, want %q", got, want)
	}
	h.add(last, 190, 0) // the clock was set back
	same.As(t, "█", h.cpuBars(last.Add(2*bucketTime), 1, bars), "with a clock set back")
	h.add(last.Add(bucketCount*bucketTime*3), 1, 0)
	if got := strings.TrimSpace(h.cpuBars(last.Add(bucketCount*bucketTime*3), bucketCount, bars)); got != "▁" {
		t.Errorf("after a long time: %q", got)
	}
	same.As(t, "", (*history)(nil).cpuBars(start, 5, bars), "without a history")
}

// TestWrap shows long lines whole on a narrow screen, their beginnings where there is little room, and cuts them on a
// wide one; w turns that around.
func TestWrap(t *testing.T) {
	s := newScreen(t)
	long := strings.Repeat("0123456789", 12)
	s.written(long + "\nlast\n")
	s.has(long[:78]+"\n", "  last\n")
	s.lacks(long[:79])
	s.keys("w")
	s.has(long[:78] + "\n  " + long[78:] + "\n  last\n")
	s.send(tea.WindowSizeMsg{Width: 40, Height: 10})
	s.has("  " + long[:38] + "\n  last\n")
	s.keys("w")
	s.has(long[:38] + "\n  " + long[38:75] + "~\n  last\n")
	s.keys("w", "right")
	s.has("\n  " + long[16:54] + "\n")
	s.keys("left", "w")
	s.written("界" + long + "\n")
	s.rows()
	s.keys("tab", "/")
	s.typed("GET")
	s.keys("enter")
	s.has("GET /")
}

// TestMouse chooses and scrolls what it is on, and answers no question.
func TestMouse(t *testing.T) {
	s := newScreen(t)
	s.View()
	click := func(x, y int) { s.send(tea.MouseClickMsg{X: x, Y: y, Button: tea.MouseLeft}); s.View() }
	wheel := func(x, y int, button tea.MouseButton) {
		s.send(tea.MouseWheelMsg{X: x, Y: y, Button: button})
		s.View()
	}
	click(5, 5)
	s.read()
	s.has(">worker", "line 100")
	wheel(5, 10, tea.MouseWheelUp)
	s.has("line 97\n")
	s.lacks("line 98")
	wheel(5, 10, tea.MouseWheelDown)
	s.has("line 100", "following")
	wheel(5, 4, tea.MouseWheelUp)
	s.has(">migrate")
	click(25, 6)
	s.has("2 Events", "Task started by client")
	click(5, 10)
	if s.inside.focus != onPanel {
		t.Error("a click on the panel does not give it the arrows")
	}
	s.keys("S")
	click(5, 4)
	s.has(">migrate", "Stop shop.web")
	s.keys("n", "esc", "esc")
	s.View()
	click(5, 3)
	s.has("Output of server") // the chosen allocation is opened by another click
	if s.View().MouseMode == tea.MouseModeNone {
		t.Error("the mouse is not asked for")
	}
	s.keys("m")
	if s.View().MouseMode != tea.MouseModeNone {
		t.Error("m does not give the mouse to the terminal")
	}
}

// TestATaskThatIsNotReady is shown as such until it says that it is.
func TestATaskThatIsNotReady(t *testing.T) {
	s := newScreen(t)
	alloc := allocation()
	alloc.TaskStates["server"].Events[0].Details = map[string]string{"notifies": "true"}
	s.snapshot(Snapshot{Alloc: alloc, Index: 8}, nil)
	s.has("not ready")
	server := alloc.TaskStates["server"]
	server.Events = append(server.Events, &api.TaskEvent{Type: "Ready"})
	s.snapshot(Snapshot{Alloc: alloc, Index: 9}, nil)
	s.lacks("not ready")
}

// TestRefusals: what a task was refused stands among its events.
func TestRefusals(t *testing.T) {
	s := newScreen(t)
	s.fake.refused = map[string][]*api.TaskEvent{"worker": {{
		Time: start.Add(5 * time.Second).UnixNano(), Type: "Refused", DisplayMessage: "PUT /v1/var/a \x1b[31mneeds more",
	}}}
	s.poll()
	lines := s.eventLines(s.watches[0], "worker")
	if len(lines) != 3 || lines[1] != "08:00:05  Refused         PUT /v1/var/a needs more" {
		t.Errorf("%q", lines)
	}
	s.fake.err = errors.New("no taskapi answers")
	s.fake.refused = nil
	s.poll()
	if now := s.eventLines(s.watches[0], "worker"); len(now) != 3 {
		t.Errorf("after a look that failed: %q", now)
	}
}
