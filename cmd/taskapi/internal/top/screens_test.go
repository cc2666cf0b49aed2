package top

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/cmd/taskapi/internal/tmux"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// screenEnv names what the test's program shows instead of running tests: the list, or an allocation's name.
const screenEnv = "TASKAPI_TEST_SCREEN"

// still is a fake of which nothing changes.
type still struct{ *fake }

func (s still) Allocation(ctx context.Context, index uint64) (Snapshot, error) {
	if index > 0 {
		<-ctx.Done()
	}
	return s.fake.Allocation(ctx, index)
}

func (s still) Output(ctx context.Context, task, stream string) (Output, error) {
	o, err := s.fake.Output(ctx, task, stream)
	return stillOutput{o, ctx}, err
}

// stillOutput waits when there is nothing more.
type stillOutput struct {
	Output
	context context.Context
}

func (o stillOutput) Next() (Chunk, error) {
	if o.Written().IsZero() {
		<-o.context.Done()
		return Chunk{}, o.context.Err()
	}
	return o.Output.Next()
}

// showScreen is the test's program as a screen: of three allocations, with a clock that stands still.
func showScreen(at string) int {
	shop := newFake()
	a := shop.snapshot.Alloc
	group := a.Job.TaskGroups[0]
	a.Name, a.CreateTime = "shop.web[0]", start.UnixNano()
	group.Tasks[0].Lifecycle = &api.TaskLifecycle{Hook: "prestart"}
	group.Tasks[0].Config = map[string]any{"command": "/usr/bin/migrate", "args": []string{"--to", "latest"}}
	group.Tasks[1].Config = map[string]any{"command": "/usr/bin/server", "args": []any{"-listen", "${NOMAD_ADDR_http}"}}
	group.Tasks[2].Config = map[string]any{"command": "/bin/sh",
		"args": []any{"-c", "while :; do\n  work 界\x1b[2J\ndone"}}
	group.Tasks[1].Services = []*api.Service{{PortLabel: "http"}}
	a.AllocatedResources = &api.AllocatedResources{Shared: api.AllocatedSharedResources{
		Ports: []api.PortMapping{{Label: "http", Value: 20080, HostIP: "127.0.0.1"}},
	}}
	shop.outputs["server stdout"] = "GET / 200 1.2ms\nGET /cart?with=a&long=query 200 12.7ms 1824 bytes user=4711\n" +
		"GET /größe/界 404\n"
	done := newFake()
	done.snapshot = Snapshot{Alloc: allocationOf("batch", 0, 3*time.Hour, 1), Ended: true}
	done.snapshot.Alloc.ClientStatus = "failed"
	done.snapshot.Alloc.TaskStates["task-0"] = &api.TaskState{
		State: "dead", StartedAt: start, Failed: true, Events: []*api.TaskEvent{
			{Time: start.UnixNano(), Type: api.TaskTerminated, DisplayMessage: "Exit Code: 3",
				Details: map[string]string{"exit_code": "3", "signal": "0"}}}}
	lost := newFake()
	lost.snapshot = Snapshot{Alloc: allocationOf("lost", 0, time.Hour, 1)}
	lost.err = fmt.Errorf("the taskapi that ran it has exited")
	found := func(f *fake) Found {
		at := f.foundAs(f.snapshot.Alloc.ID)
		at.Open = func() Source { return still{f} }
		if f.snapshot.Ended {
			at.Ended = &f.snapshot
		}
		return at
	}
	now := start.Add(time.Minute)
	c := Config{
		Find:     func(context.Context) ([]Found, error) { return []Found{found(done), found(lost), found(shop)}, nil },
		Clock:    func() time.Time { return now },
		Terminal: Terminal{In: os.Stdin, Out: os.Stdout, Env: os.Environ(), Colour: true, Lines: true},
	}
	if at == a.Name {
		c.Start = a.ID
	}
	w := newWork(context.Background())
	m := newModel(c, w)
	all, _ := c.Find(w.context)
	m.found(foundMsg{all: all})
	for i := range 40 { // the past
		for name, h := range map[string]float64{"": 110, "server": 12, "worker": 100} {
			past := m.watches[2].past
			if past[name] == nil {
				past[name] = &history{}
			}
			past[name].add(now.Add(time.Duration(i-40)*bucketTime), h*float64(i%7)/6, uint64(h+float64(i))<<20)
		}
	}
	defer w.Close()
	if err := m.run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// TestTerminals are the screens as a terminal shows them, of three sizes, and that a key redraws only what it changes.
func TestTerminals(t *testing.T) {
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("there is no tmux here: ", err)
	}
	self := must.Get(os.Executable())(t)
	for _, size := range [][2]int{{40, 10}, {80, 24}, {200, 50}} {
		for at, name := range map[string]string{"list": "list", "shop.web[0]": "inside"} {
			name = fmt.Sprintf("%s-%dx%d", name, size[0], size[1])
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				dir := must.ShortDir(t)
				term := tmux.Terminal{Socket: filepath.Join(dir, "s")}
				env := []string{screenEnv + "=" + at, "LC_ALL=C.UTF-8", "GOCOVERDIR=" + dir}
				must.OK(t, term.Open(size[0], size[1], env, self))
				t.Cleanup(term.Close)
				showsGolden(t, term, name)
				if size[0] == 200 {
					redrawsLittle(t, term, dir)
				}
			})
		}
	}
}

// screenOf returns what is on a terminal, without the spaces at the ends of rows.
func screenOf(t *testing.T, term tmux.Terminal) string {
	t.Helper()
	text := must.Get(term.Do("capture-pane", "-p"))(t)
	rows := strings.Split(text, "\n")
	for i, row := range rows {
		rows[i] = strings.TrimRight(row, " ")
	}
	return strings.Join(rows, "\n") + "\n"
}

// screenDeadline is how long a screen may take on a busy machine.
const screenDeadline = time.Minute

// showsGolden waits for the screen that is kept.
func showsGolden(t *testing.T, term tmux.Terminal, name string) {
	t.Helper()
	path := filepath.Join("testdata", "terminal", name+".txt")
	want, err := os.ReadFile(path)
	if err != nil && !*update {
		t.Fatal(err)
	}
	var got string
	for give := time.Now().Add(screenDeadline); ; time.Sleep(50 * time.Millisecond) { // a terminal can only be polled
		if got = screenOf(t, term); got == string(want) {
			return
		}
		if time.Now().After(give) || *update && time.Now().After(give.Add(5*time.Second-screenDeadline)) {
			break
		}
	}
	if *update {
		must.OK(t, os.WriteFile(path, []byte(got), 0o644))
		return
	}
	t.Errorf("terminal %s (-want +got); -update writes it:\n%s", name, cmp.Diff(string(want), got))
}

// redrawsLittle fails the test if each of three keys writes more to the terminal than the rows that it changes. One may
// meet a drawing of the whole screen, as a change of its size asks for.
func redrawsLittle(t *testing.T, term tmux.Terminal, dir string) {
	t.Helper()
	path := filepath.Join(dir, "written")
	must.Get(term.Do("pipe-pane", "-O", "cat > "+path))(t)
	if _, err := term.Do("send-keys", "Tab"); err != nil { // the focus, which is a matter of style; nothing in the list
		t.Fatal(err)
	}
	least := 0
	for seen, key := range []string{"/", "e", "r"} {
		before, had := screenOf(t, term), least
		written := len(readOrEmpty(path))
		must.Get(term.Do("send-keys", key))(t)
		if !polltest.Until(func() bool { return screenOf(t, term) != before && len(readOrEmpty(path)) > written }) {
			t.Fatalf("%q draws nothing", key)
		}
		if least = len(readOrEmpty(path)) - written; seen > 0 {
			least = min(least, had)
		}
	}
	if least > 1000 { // the screen has 10,000 places
		t.Errorf("each key writes %d bytes and more, together\n%q", least, readOrEmpty(path))
	}
}

func readOrEmpty(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}
