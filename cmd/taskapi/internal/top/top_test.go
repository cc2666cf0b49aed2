package top

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"taskapi/cmd/taskapi/internal/top/tasktext"
	"taskapi/internal/must"
)

var update = flag.Bool("update", false, "write the golden screens")

func TestMain(m *testing.M) {
	if at := os.Getenv(screenEnv); at != "" {
		unix.Exit(showScreen(at)) // os.Exit would let the race detector sleep for a second
	}
	goleak.VerifyTestMain(m)
}

// start is when the allocation of the tests was made; it is a minute later when a screen begins.
var start = time.Date(2026, 11, 22, 8, 0, 0, 0, time.UTC)

// fake is an allocation without processes.
type fake struct {
	snapshot Snapshot
	err      error // of every read
	done     []string
	refuse   error // of every action
	outputs  map[string]string
	refused  map[string][]*api.TaskEvent
}

func (f *fake) Refusals(context.Context) (map[string][]*api.TaskEvent, error) {
	return f.refused, f.err
}

func (f *fake) Allocation(context.Context, uint64) (Snapshot, error) { return f.snapshot, f.err }

func (f *fake) Checks(context.Context) (api.AllocCheckStatuses, error) {
	return api.AllocCheckStatuses{
		"1": {ID: "1", Check: "alive", Service: "shop", Task: "server", Status: "success", StatusCode: 200,
			Output:    "nomad: http ok",
			Timestamp: start.Unix()},
		"2": {ID: "2", Check: "deep", Service: "shop", Task: "worker", Status: "failure",
			Output:    "nomad: dial tcp 127.0.0.1:9: connection refused",
			Timestamp: start.Unix()},
	}, f.err
}

func (f *fake) Stats(context.Context) (*api.AllocResourceUsage, error) {
	usage := func(cpu float64, memory uint64) *api.ResourceUsage {
		return &api.ResourceUsage{CpuStats: &api.CpuStats{Percent: cpu}, MemoryStats: &api.MemoryStats{RSS: memory}}
	}
	return &api.AllocResourceUsage{ResourceUsage: usage(107.46, 3<<30+512<<20), Tasks: map[string]*api.TaskResourceUsage{
		"server": {ResourceUsage: usage(7.46, 512<<20), Pids: map[string]*api.ResourceUsage{"4711": nil, "981": nil}},
		"worker": {ResourceUsage: usage(100, 3<<30), Pids: map[string]*api.ResourceUsage{"4712": nil}},
	}}, f.err
}

func (f *fake) Output(_ context.Context, task, stream string) (Output, error) {
	text, ok := f.outputs[task+" "+stream]
	if _, other := f.outputs[task+" stdout"]; !ok && !other {
		return nil, ErrUnavailable
	}
	return &fakeOutput{text, stream}, f.err
}

// fakeOutput returns a text, and then nothing any more. Standard error was written last.
type fakeOutput struct{ text, stream string }

func (o *fakeOutput) Written() time.Time {
	switch {
	case o.text == "":
		return time.Time{}
	case o.stream == tasktext.Stderr.String():
		return start.Add(time.Second)
	}
	return start
}

func (o *fakeOutput) Next() (Chunk, error) {
	text := o.text
	if o.text = ""; text == "" {
		return Chunk{}, errors.New("no more")
	}
	return Chunk{Text: []byte(text)}, nil
}

func (f *fake) did(what string) error { f.done = append(f.done, what); return f.refuse }

func (f *fake) Restart(_ context.Context, task string) error { return f.did("restart " + task) }
func (f *fake) Pause(_ context.Context, task, state string) error {
	return f.did("pause " + task + " " + state)
}
func (f *fake) Signal(_ context.Context, task, signal string) error {
	return f.did("signal " + task + " " + signal)
}
func (f *fake) Stop(context.Context) error { return f.did("stop") }
func (f *fake) Close()                     {}

// allocation returns one with three tasks: one that runs, one that has been restarted, and one that is done.
func allocation() *api.Allocation {
	group, yes := "web", true
	event := func(after time.Duration, kind, message string) *api.TaskEvent {
		return &api.TaskEvent{Time: start.Add(after).UnixNano(), Type: kind, DisplayMessage: message}
	}
	return &api.Allocation{
		ID: "c0284333-7053-4bd5-901d-ebabf09d52fb", JobID: "shop", TaskGroup: group, ClientStatus: "running",
		DesiredStatus:    "run",
		DeploymentStatus: &api.AllocDeploymentStatus{Healthy: &yes},
		Job: &api.Job{TaskGroups: []*api.TaskGroup{
			{Name: &group, Tasks: []*api.Task{{Name: "migrate"}, {Name: "server"}, {Name: "worker"}}},
		}},
		TaskStates: map[string]*api.TaskState{
			"migrate": {State: "dead", StartedAt: start, Events: []*api.TaskEvent{
				event(0, "Started", "Task started by client"),
				{Time: start.Add(time.Second).UnixNano(), Type: "Terminated", DisplayMessage: "Exit Code: 0",
					Details: map[string]string{"exit_code": "0", "signal": "0"}},
			}},
			"server": {State: "running", StartedAt: start.Add(2 * time.Second), Events: []*api.TaskEvent{
				event(2*time.Second, "Started", "Task started by client"),
			}},
			"worker": {State: "running", StartedAt: start.Add(20 * time.Second), Restarts: 2, Events: []*api.TaskEvent{
				event(3*time.Second, "Started", "Task started by client"),
				event(9*time.Second, "Terminated", "Exit Code: 3, Exit Message: \"a \x1b]52;c;aGk=\x07 title\""),
			}},
		},
	}
}

// screen is a model in a test, with what happens to it.
type screen struct {
	*Model
	t    *testing.T
	fake *fake
	quit bool
}

// newScreen makes a screen inside of the allocation of the tests that has seen everything once.
func newScreen(t *testing.T) *screen {
	t.Helper()
	s := newBlankScreen(t, newFake())
	s.look()
	return s
}

func newFake() *fake {
	return &fake{snapshot: Snapshot{Alloc: allocation(), Index: 7}, outputs: map[string]string{
		"server stdout": "GET /\nGET /cart\n", "server stderr": "warning: slow\n", "migrate stdout": "migrated\n",
		"worker stdout": lines(100),
	}}
}

// foundAs returns the allocation of a fake as a look finds it.
func (f *fake) foundAs(id string) Found {
	shell := func(ctx context.Context, task, line string) *exec.Cmd {
		return exec.CommandContext(ctx, "true", task, line)
	}
	return Found{ID: id, Open: func() Source { return f }, Shell: shell}
}

// newBlankScreen makes a screen inside of a fake's allocation, of which nothing has been seen.
func newBlankScreen(t *testing.T, f *fake) *screen {
	t.Helper()
	s := newListScreen(t, allocation().ID)
	s.fake = f
	s.send(foundMsg{all: []Found{f.foundAs(allocation().ID)}})
	return s
}

// newListScreen makes a screen that has not seen anything. at is the ID of the allocation that it begins in.
func newListScreen(t *testing.T, at string) *screen {
	t.Helper()
	w := newWork(t.Context())
	t.Cleanup(w.Close)
	now := start.Add(time.Minute)
	return &screen{newModel(Config{Start: at, Clock: func() time.Time { return now },
		Terminal: Terminal{Lines: true}}, w), t, nil, false}
}

// look reads everything once.
func (s *screen) look() {
	s.t.Helper()
	s.snapshot(s.fake.Allocation(s.t.Context(), 0))
	s.poll()
	s.read()
}

// snapshot is what a look at the only allocation says.
func (s *screen) snapshot(snapshot Snapshot, err error) tea.Cmd {
	return s.send(snapshotMsg{s.watches[0], snapshot, err})
}

func (s *screen) poll() {
	p := pollMsg{watch: s.watches[0]}
	p.usage, p.usageErr = s.fake.Stats(s.t.Context())
	p.checks, p.checksErr = s.fake.Checks(s.t.Context())
	p.refused, _ = s.fake.Refusals(s.t.Context())
	s.send(p)
}

// read reads the output of the chosen task.
func (s *screen) read() {
	msg := s.inside.openOutput(s.t.Context(), s.watches[0], s.choice, s.inside.chosen, s.inside.streams, 0)()
	s.send(msg)
}

func (s *screen) send(msg tea.Msg) tea.Cmd {
	_, cmd := s.Update(msg)
	if _, ok := msg.(pollMsg); ok {
		s.Update(refreshMsg{})
	}
	return cmd
}

// keys are sent one after the other, by their names; what they begin is done at once.
func (s *screen) keys(names ...string) {
	s.t.Helper()
	for _, name := range names {
		if cmd := s.send(keyOf(name)); cmd != nil {
			s.begins(cmd)
		}
	}
}

// begins does what a key has begun, if it is short.
func (s *screen) begins(cmd tea.Cmd) {
	done := make(chan tea.Msg, 1)
	go func() { done <- cmd() }()
	switch msg := (<-done).(type) {
	case tea.QuitMsg:
		s.quit = true
	case actionMsg:
		s.send(msg)
	case openedMsg:
		s.send(msg)
	case tea.BatchMsg:
		for _, cmd := range msg {
			s.begins(cmd)
		}
	}
}

// written is what the chosen task writes now.
func (s *screen) written(text string) {
	s.send(outputMsg{choice: s.choice, output: &fakeOutput{}, chunk: Chunk{Text: []byte(text)}})
}

func (s *screen) typed(text string) {
	for _, r := range text {
		s.keys(string(r))
	}
}

// keyOf returns the message of a key.
func keyOf(name string) tea.KeyPressMsg {
	special := map[string]tea.Key{
		"up": {Code: tea.KeyUp}, "down": {Code: tea.KeyDown}, "left": {Code: tea.KeyLeft}, "right": {Code: tea.KeyRight},
		"pgup": {Code: tea.KeyPgUp}, "pgdown": {Code: tea.KeyPgDown}, "home": {Code: tea.KeyHome}, "end": {Code: tea.KeyEnd},
		"enter": {Code: tea.KeyEnter}, "esc": {Code: tea.KeyEscape}, "tab": {Code: tea.KeyTab},
		"backspace": {Code: tea.KeyBackspace},
		"shift+tab": {Code: tea.KeyTab, Mod: tea.ModShift}, "space": {Code: tea.KeySpace,
			Text: " "}, "f1": {Code: tea.KeyF1}, "f10": {Code: tea.KeyF10},
		"alt+esc": {Code: tea.KeyEscape, Mod: tea.ModAlt},
	}
	if key, ok := special[name]; ok {
		return tea.KeyPressMsg(key)
	}
	if letter, ok := strings.CutPrefix(name, "ctrl+"); ok {
		return tea.KeyPressMsg{Code: rune(letter[0]), Mod: tea.ModCtrl}
	}
	return tea.KeyPressMsg{Code: []rune(name)[0], Text: name}
}

// rows returns the screen as text, without styles and the spaces at the ends of rows, and checks that it fits the
// terminal.
func (s *screen) rows() []string {
	s.t.Helper()
	s.stale = true // by what a test has changed
	painted := s.View().Content
	for _, r := range ansi.Strip(painted) {
		if r < ' ' && r != '\n' || r == 0x7f {
			s.t.Errorf("the screen has the control character %q", r)
		}
	}
	rows := strings.Split(ansi.Strip(painted), "\n")
	if len(rows) > s.height {
		s.t.Errorf("the screen has %d rows, the terminal %d", len(rows), s.height)
	}
	for i, row := range rows {
		if wide := ansi.StringWidth(row); wide > s.width {
			s.t.Errorf("a row of %d columns, the terminal has %d: %q", wide, s.width, row)
		}
		rows[i] = strings.TrimRight(row, " ")
	}
	return rows
}

func (s *screen) text() string { return strings.Join(s.rows(), "\n") + "\n" }

// golden compares the screen with the one that is kept.
func (s *screen) golden(name string) {
	s.t.Helper()
	path := filepath.Join("testdata", name+".txt")
	got := s.text()
	if *update {
		must.OK(s.t, os.WriteFile(path, []byte(got), 0o644))
	}
	want := must.Read(s.t, path)
	if diff := cmp.Diff(string(want), got); diff != "" {
		s.t.Errorf("screen %s (-want +got); -update writes it:\n%s", name, diff)
	}
}

func (s *screen) has(texts ...string) {
	s.t.Helper()
	all := s.text()
	for _, text := range texts {
		if !strings.Contains(all, text) {
			s.t.Errorf("the screen has no %q:\n%s", text, all)
		}
	}
}

func (s *screen) lacks(text string) {
	s.t.Helper()
	if all := s.text(); strings.Contains(all, text) {
		s.t.Errorf("the screen has %q:\n%s", text, all)
	}
}

func lines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "line %d\n", i+1)
	}
	return b.String()
}
