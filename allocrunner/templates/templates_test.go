package templates_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner"
	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/memory"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/allocrunner/templates"
	"taskapi/allocrunner/templates/render"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/same"
)

func TestMain(m *testing.M) {
	if code, kept := allocrunner.KeeperMain(os.Args, nil); kept {
		unix.Exit(code) // os.Exit would let the race detector sleep for a second
	}
	os.Exit(m.Run())
}

// deadline is for what takes milliseconds, and seconds on a busy machine.
var deadline = polltest.Deadline()

// plain seals nothing.
type plain struct{}

func (plain) Seal(text []byte, _ string) ([]byte, error) { return text, nil }
func (plain) Open(text []byte, _ string) ([]byte, error) { return text, nil }

// shared is what the allocations of a machine share. A task may read every variable but those below "denied".
type shared struct {
	t         *testing.T
	store     cluster.Store
	variables *variables.Service
	registry  *registry.Registry
	denied    *atomic.Bool // every variable is
	sources   map[render.Program]templates.Source
	dir       string // of the allocation; empty for a temporary one
	stateDir  string // of its state, too
}

func newShared(t *testing.T) *shared {
	t.Helper()
	store := memory.New()
	t.Cleanup(func() { _ = store.Close() })
	return &shared{t: t, store: store, variables: variables.New(variables.Config{Store: store, Sealer: plain{}}),
		registry: registry.New(store), denied: new(atomic.Bool), sources: map[render.Program]templates.Source{}}
}

func (s *shared) Variable(ctx context.Context, namespace, path string) (*api.Variable, error) {
	if strings.HasPrefix(path, "denied") || s.denied.Load() {
		return nil, templates.ErrDenied
	}
	v, _, err := s.variables.Read(ctx, namespace, path)
	return v, err
}

func (s *shared) Variables(ctx context.Context, namespace, prefix string) ([]*api.VariableMetadata, error) {
	list, _, err := s.variables.List(ctx, namespace, prefix, variables.Everything)
	return list, err
}

func (s *shared) Services(ctx context.Context, name string) ([]*api.ServiceRegistration, error) {
	list, _, err := s.registry.Services(ctx, "default", name)
	return list, err
}

func (s *shared) Source(program render.Program) templates.Source { return s.sources[program] }

// put writes a variable with one item.
func (s *shared) put(path, key, value string) {
	s.t.Helper()
	_, _, err := s.variables.Put(s.t.Context(), &api.Variable{Namespace: "default", Path: path,
		Items: map[string]string{key: value}}, nil)
	must.OK(s.t, err)
}

// running is an allocation with one task.
type running struct {
	t      *testing.T
	shared *shared
	cfg    interfaces.Config
	runner *allocrunner.Runner
	result chan error
	log    *polltest.Log
	state  *state.DB
	edit   func(*interfaces.Saved) // changes the state with which another runner begins; nil for no change

	mu     sync.Mutex // guards events
	events []string   // TYPE: MESSAGE
}

// run runs a task, a script of the shell, with templates.
func (s *shared) run(script string, list ...*api.Template) *running {
	s.t.Helper()
	return s.runTask(&api.Task{Name: "main", Driver: "raw_exec", Templates: list,
		Config: map[string]any{"command": "/bin/sh", "args": []any{"-c", script}}})
}

func (s *shared) runTask(task *api.Task) *running {
	s.t.Helper()
	group := api.NewTaskGroup("g", 1)
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Interval: new(time.Minute), Mode: new("fail")}
	group.Tasks = []*api.Task{task}
	job := &api.Job{ID: new("job"), Name: new("job"), Type: new("service"), TaskGroups: []*api.TaskGroup{group}}
	job.Canonicalize()
	db, err := state.Open(filepath.Join(cmp.Or(s.stateDir, s.t.TempDir()), "state.db"), "test")
	must.OK(s.t, err)
	s.t.Cleanup(func() { _ = db.Close() })
	r := &running{t: s.t, shared: s, log: new(polltest.Log), state: db}
	r.cfg = interfaces.Config{
		Alloc: &api.Allocation{ID: "115ef685-6b9e-3eaf-e74b-6b04f094ebca", Name: "job.g[0]", Namespace: "default",
			JobID: "job", Job: job, TaskGroup: "g", NodeID: "n", NodeName: "n"},
		Dir: filepath.Join(cmp.Or(s.dir, s.t.TempDir()), "alloc"), State: db,
		Logger: slog.New(slog.NewTextHandler(r.log, nil)),
	}
	r.cfg.OnEvent = func(_ string, e *api.TaskEvent) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(r.events, e.Type+": "+e.DisplayMessage)
	}
	r.begin()
	return r
}

// begin runs the allocation, or what an earlier runner has left of it.
func (r *running) begin() {
	r.t.Helper()
	cfg := r.cfg
	watch := templates.NewWatch(r.shared.store, cfg.Logger)
	cfg.TaskHooks = func(_ *api.Allocation, task *api.Task) []interfaces.TaskHook {
		return []interfaces.TaskHook{templates.New(templates.Config{
			Watch: watch, Values: func(string) templates.Values { return r.shared }, Logger: cfg.Logger,
		}, task.Name)}
	}
	runner, err := allocrunner.New(cfg)
	must.OK(r.t, err)
	r.runner, r.result = runner, make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	result := r.result
	go func() { result <- runner.Run(ctx) }()
	r.t.Cleanup(func() {
		cancel()
		runner.Kill()
		_ = r.wait(result)
	})
}

// resume has another runner go on, after something has happened in between.
func (r *running) resume(between func()) {
	r.t.Helper()
	r.until("running", func() bool { return r.runner.Alloc().ClientStatus == api.AllocClientStatusRunning })
	r.runner.Detach()
	if err := r.wait(r.result); !errors.Is(err, interfaces.ErrDetached) {
		r.t.Fatal(err)
	}
	between()
	saved, err := r.state.Load()
	must.OK(r.t, err)
	if r.edit != nil {
		r.edit(saved)
	}
	r.cfg.Saved = saved
	r.begin()
}

func (r *running) wait(result chan error) error {
	select {
	case err := <-result:
		result <- err
		return err
	case <-time.After(deadline):
		r.t.Errorf("the allocation does not end: %q", r.seen())
		return nil
	}
}

func (r *running) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// types returns the types of the events.
func (r *running) types() []string {
	var types []string
	for _, e := range r.seen() {
		kind, _, _ := strings.Cut(e, ":")
		types = append(types, kind)
	}
	return types
}

func (r *running) until(what string, ok func() bool) {
	r.t.Helper()
	if !polltest.Until(ok) {
		r.t.Fatalf("not %s: %q", what, r.seen())
	}
}

func (r *running) path(name string) string { return filepath.Join(r.cfg.Dir, "main", name) }

// untilFile waits for a file to have the content.
func (r *running) untilFile(name, want string) {
	r.t.Helper()
	var got []byte
	r.until(fmt.Sprintf("%s is %q", name, want), func() bool {
		got, _ = os.ReadFile(r.path(name))
		return string(got) == want
	})
}

// untilEvent waits for an event that contains the words.
func (r *running) untilEvent(words string) {
	r.t.Helper()
	r.until(words, func() bool {
		return slices.ContainsFunc(r.seen(), func(e string) bool { return strings.Contains(e, words) })
	})
}

// outOfMemoryRace is what a process with the race detector says when it has no memory left.
const outOfMemoryRace = "exit status 66"

// wantFailure waits for the end of an allocation whose templates fail with these words.
func (r *running) wantFailure(words string) {
	r.t.Helper()
	err := r.wait(r.result)
	if err == nil || !strings.Contains(err.Error(), words) && !strings.Contains(err.Error(), outOfMemoryRace) {
		r.t.Fatalf("it ended with %v, want %q", err, words)
	}
	r.until("reported", func() bool { return len(r.seen()) >= 3 })
	if diff := gocmp.Diff([]string{"Received", "Task Setup", "Killing"}, r.types()); diff != "" {
		r.t.Errorf("events (-want +got):\n%s", diff)
	}
	r.wantNoSecret()
}

// secret is the value of a variable in tests.
const secret = "s3cretvalue"

// wantNoSecret looks for the value of a variable where none may be.
func (r *running) wantNoSecret() {
	r.t.Helper()
	if all := fmt.Sprint(r.seen(), r.log); strings.Contains(strings.ToLower(all), secret[2:]) {
		r.t.Errorf("the value of a variable is in events or in the log: %s", all)
	}
}

// template returns one with data, rendered without a splay.
func template(destination, data, mode string) *api.Template {
	return &api.Template{DestPath: &destination, EmbeddedTmpl: &data, ChangeMode: &mode, Splay: new(time.Duration(0))}
}

// follows returns a template of the variable v. The signal is SIGHUP, and the script says in local/said what it finds.
func follows(mode string) *api.Template {
	t := template("local/x", `{{ with nomadVar "v" }}{{ .a }}{{ end }}`, mode)
	t.ChangeSignal = new("SIGHUP")
	t.ChangeScript = &api.ChangeScript{Command: new("/bin/sh"),
		Args: []string{"-c", `echo "script $(cat local/x)" >> local/said`}}
	return t
}

// says is a task that says in local/said what it finds at its start and at each signal.
const says = `say() { echo "$1 $(cat local/x)" >> local/said; }
	trap 'say hup' HUP; say up; while :; do sleep 0.05; done`

// record is a script that says its starts and signals in local/said.
const record = `trap 'echo hup >> local/said' HUP; echo up >> local/said; while :; do sleep 0.05; done`

// TestRendersBeforeTheStart: files have their places, modes and owners, and variables of the environment their values,
// when the task starts.
func TestRendersBeforeTheStart(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.put("nomad/jobs/job", "password", secret)
	owned := template("../alloc/data/shared.conf", "shared", "noop")
	owned.Perms = new("0600")
	if os.Getuid() == 0 {
		owned.Uid, owned.Gid = new(4242), new(4243)
	}
	env := template("${NOMAD_SECRETS_DIR}/app.env", "# all\nPASSWORD="+
		"{{ with nomadVar \"nomad/jobs/job\" }}{{ .password }}{{ end }}\nQUOTED=\"a b\"\nGREETING=template\n", "noop")
	env.Envvars, env.Perms = new(true), new("0400")
	other := template("/local/sub/dir/other", `[[ env "GREETING" ]] {{ "as it is" }}`, "noop")
	other.LeftDelim, other.RightDelim = new("[["), new("]]")
	task := &api.Task{Name: "main", Driver: "raw_exec", Env: map[string]string{"GREETING": "task"},
		Templates: []*api.Template{template("local/a", "a\n", "noop"), env, other, owned,
			template("local/${no_such}", "as it is written", "noop")},
		Config: map[string]any{"command": "/bin/sh", "args": []any{"-c",
			`cat local/a local/sub/dir/other > local/saw; echo " $PASSWORD $QUOTED $GREETING" >> local/saw; sleep 1000`}}}
	r := s.runTask(task)
	r.untilFile("local/saw", "a\ntask {{ \"as it is\" }} "+secret+" a b template\n")
	for name, want := range map[string]os.FileMode{
		"local/a": 0o644, "secrets/app.env": 0o400, "local/sub/dir/other": 0o644, "../alloc/data/shared.conf": 0o600,
		"local/${no_such}": 0o644,
	} {
		info, err := os.Stat(r.path(name))
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", name, info, err)
			continue
		}
		if stat := info.Sys().(*syscall.Stat_t); owned.Uid != nil && strings.HasSuffix(name, "shared.conf") &&
			(stat.Uid != 4242 || stat.Gid != 4243) {
			t.Errorf("%s belongs to %d:%d", name, stat.Uid, stat.Gid)
		}
	}
	r.wantNoSecret()
}

// TestFollowsAVariable: the file changes with the variable, and the task gets a signal, once for each change. A change
// that leaves the file as it was does nothing.
func TestFollowsAVariable(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.put("nomad/jobs/job", "colour", "blue")
	once := template("local/once", `{{ with nomadVar "nomad/jobs/job" }}{{ .colour }}{{ end }}`, "restart")
	once.Once = new(true)
	change := template("local/colour", `{{ with nomadVar "nomad/jobs/job" }}{{ .colour }}{{ end }}`, "signal")
	change.ChangeSignal = new("SIGHUP")
	r := s.run(record, change, once)
	r.untilFile("local/said", "up\n")
	r.untilFile("local/colour", "blue")
	s.put("nomad/jobs/job", "colour", "green")
	r.untilFile("local/said", "up\nhup\n")
	r.untilFile("local/colour", "green")
	s.put("other", "colour", "x")
	s.put("nomad/jobs/job", "other", "y") // and "colour" is gone: an empty file
	r.untilFile("local/said", "up\nhup\nhup\n")
	r.untilFile("local/colour", "")
	r.untilFile("local/once", "blue")
}

// TestFollowsAService restarts the task when a service comes and goes.
func TestFollowsAService(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	provider := s.registry.Provider(&api.Allocation{ID: "215ef685-6b9e-3eaf-e74b-6b04f094ebca", Namespace: "default",
		JobID: "db", Job: &api.Job{Datacenters: []string{"dc1"}}}, slog.New(slog.DiscardHandler))
	r := s.run(`cat local/db >> local/saw; sleep 1000`, template("local/db",
		"dbs:{{ range nomadService \"db\" }} {{ .Address }}:{{ .Port }}{{ end }}\n", "restart"))
	r.untilFile("local/saw", "dbs:\n")
	instance := &interfaces.ServiceInstance{ServiceRegistration: api.ServiceRegistration{
		ID: "_nomad-task-215ef685-6b9e-3eaf-e74b-6b04f094ebca-db-db-5432", AllocID: "215ef685-6b9e-3eaf-e74b-6b04f094ebca",
		Namespace: "default", ServiceName: "db", Address: "10.0.0.1", Port: 5432}}
	must.OK(t, provider.Register(t.Context(), []*interfaces.ServiceInstance{instance}))
	r.untilFile("local/saw", "dbs:\ndbs: 10.0.0.1:5432\n")
	must.OK(t, provider.Deregister(t.Context(), []string{instance.ID}))
	r.untilFile("local/saw", "dbs:\ndbs: 10.0.0.1:5432\ndbs:\n")
	r.untilEvent("Restart Signaled: Template with change_mode restart re-rendered")
}

// TestFollowsALock: one template follows a variable, a service and a variable that is locked. Who takes the lock makes
// the variable, whose holder is what the task sees; a renewal and a release change nothing.
func TestFollowsALock(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.put("v", "a", "1")
	alloc := "215ef685-6b9e-3eaf-e74b-6b04f094ebca"
	provider := s.registry.Provider(&api.Allocation{ID: alloc, Namespace: "default", JobID: "db",
		Job: &api.Job{Datacenters: []string{"dc1"}}}, slog.New(slog.DiscardHandler))
	acquire := func(who string) string {
		t.Helper()
		v, _, err := s.variables.Acquire(t.Context(), &api.Variable{Namespace: "default", Path: "leader",
			Items: api.VariableItems{"who": who}, Lock: &api.VariableLock{TTL: "10m", LockDelay: "0s"}})
		must.OK(t, err)
		return v.Lock.ID
	}
	change := template("local/x", `{{ with nomadVar "leader" }}{{ .who }}{{ end }} `+
		`{{ with nomadVar "v" }}{{ .a }}{{ end }}{{ range nomadService "db" }} {{ .Port }}{{ end }}`, "signal")
	change.ChangeSignal = new("SIGHUP")
	r := s.run(`say() { echo "$(cat local/x)" >> local/said; }
		trap say HUP; say; while :; do sleep 0.05; done`, change)
	r.untilEvent("Template: Missing: nomad.var.block(leader@default.global)")
	lock := acquire("one")
	r.untilFile("local/said", "one 1\n")
	if _, _, err := s.variables.Renew(t.Context(), "default", "leader", lock); err != nil {
		t.Fatal(err)
	}
	s.put("v", "a", "2")
	r.untilFile("local/said", "one 1\none 2\n")
	if _, _, err := s.variables.Release(t.Context(), "default", "leader", lock); err != nil {
		t.Fatal(err)
	}
	must.OK(t, provider.Register(t.Context(), []*interfaces.ServiceInstance{{ServiceRegistration: api.ServiceRegistration{
		ID: "_nomad-task-" + alloc + "-db-db-5432", AllocID: alloc, Namespace: "default", ServiceName: "db",
		Address: "10.0.0.1", Port: 5432}}}))
	r.untilFile("local/said", "one 1\none 2\none 2 5432\n")
	acquire("two")
	r.untilFile("local/said", "one 1\none 2\none 2 5432\ntwo 2 5432\n")
}

// TestEnvFollowsAVariable: the next process has the new value.
func TestEnvFollowsAVariable(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.put("v", "a", "1")
	env := template("secrets/env", `A={{ with nomadVar "v" }}{{ .a }}{{ end }}`, "restart")
	env.Envvars = new(true)
	r := s.run(`echo "$A" >> local/saw; sleep 1000`, env)
	r.untilFile("local/saw", "1\n")
	s.put("v", "a", "2")
	r.untilFile("local/saw", "1\n2\n")
}

// TestFollowsAFile: a file that the task writes is read again.
func TestFollowsAFile(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	r := s.run(`echo one > local/in; sleep 1000`,
		template("local/early", `{{ with nomadVar "go" }}{{ end }}`, "noop"), // the task does not start before
		template("local/out", `{{ if nomadVarExists "read" }}`+
			`{{ file (print (env "NOMAD_TASK_DIR") "/in") }}{{ end }}`, "noop"))
	s.put("go", "a", "b")
	r.untilFile("local/in", "one\n")
	s.put("read", "a", "b")
	r.untilFile("local/out", "one\n")
	must.OK(t, os.WriteFile(r.path("local/in.new"), []byte("two\n"), 0o600))
	must.OK(t, os.Rename(r.path("local/in.new"), r.path("local/in")))
	r.untilFile("local/out", "two\n")
}

// TestScripts run in the task, after changes and, if asked, after the first rendering. One with fail_on_error that
// fails fails the task.
func TestScripts(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.put("v", "a", "0")
	change := template("local/code", `{{ with nomadVar "v" }}{{ .a }}{{ end }}`, "script")
	change.ChangeScript = &api.ChangeScript{Command: new("/bin/sh"), RunOnFirstRender: new(true), FailOnError: new(true),
		Args: []string{"-c", `echo "$NOMAD_TASK_NAME" >> local/ran; exit $(cat local/code)`}}
	r := s.run("sleep 1000", change)
	r.untilFile("local/ran", "main\n")
	r.untilEvent("Task hook message: Template successfully ran script /bin/sh with arguments: [-c ")
	s.put("v", "a", "3")
	const failed = "Template script failed, task is being killed"
	same.Says(t, nil, failed, r.wait(r.result), "it ended with")
	r.untilFile("local/ran", "main\nmain\n")
	r.untilEvent("but it exited with code: 3")
}

// TestWaitsForValues: the task starts when all values exist, and an event names those that are missing.
func TestWaitsForValues(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	var text strings.Builder
	for i := range 5 {
		fmt.Fprintf(&text, `{{ with nomadVar "v/%d" }}{{ .a }}{{ end }}`, i)
	}
	r := s.run("sleep 1000", template("local/x", text.String(), "restart"),
		template("local/list", `{{ range nomadVarListSafe "v" }}{{ .Path }} {{ end }}`, "noop"))
	r.untilEvent("Template: Missing: nomad.var.block(v/0@default.global), nomad.var.block(v/1@default.global), " +
		"nomad.var.block(v/2@default.global), and 3 more")
	for i := range 5 {
		if slices.Contains(r.types(), "Started") {
			t.Fatal("the task started before all values were there")
		}
		s.put(fmt.Sprintf("v/%d", i), "a", fmt.Sprint(i))
	}
	r.untilEvent("Started")
	r.untilFile("local/x", "01234")
	if slices.Contains(r.types(), "Restarting") {
		t.Error("it restarted for the first rendering")
	}
}

// TestWaitsForASecretName: an event about a missing value has no value of a variable in its name.
func TestWaitsForASecretName(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.put("v", "a", secret)
	r := s.run("sleep 1000", template("local/x", `{{ with nomadVar "v" }}{{ nomadVar .a.Value }}{{ end }}`, "noop"))
	r.untilEvent("Template: Missing: nomad.var.block([redacted]@default.global)")
	r.wantNoSecret()
}

// TestWaitsForAChangedSecretName: the template changes the value before it uses the value as a name. What it says
// itself, and what the environment says, is shown.
func TestWaitsForAChangedSecretName(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.put("v", "a", secret)
	r := s.run("sleep 1000", template("local/x", `{{ with nomadVar "v" }}{{ nomadVar (toUpper .a.Value) }}`+
		`{{ nomadVar (print "of/" (env "NOMAD_JOB_NAME") "/" (trimPrefix "s3" .a.Value)) }}{{ end }}`, "noop"))
	r.untilEvent("Template: Missing: nomad.var.block([redacted]@default.global), " +
		"nomad.var.block(of/job/[redacted]@default.global)")
	r.wantNoSecret()
}

// TestResume: another runner does not act on the task unless a value has changed meanwhile.
func TestResume(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.put("v", "a", "1")
	r := s.run(says, follows("signal"), template("local/marker", "rendered", "noop"))
	r.untilFile("local/said", "up 1\n")
	for range 2 {
		r.resume(func() { _ = os.Remove(r.path("local/marker")) })
		r.untilFile("local/marker", "rendered")
	}
	s.put("v", "a", "2") // after the resumption
	r.untilFile("local/said", "up 1\nhup 2\n")
	r.resume(func() { s.put("v", "a", "3") }) // while nobody follows it
	r.untilFile("local/said", "up 1\nhup 2\nhup 3\n")
	signals := slices.DeleteFunc(r.types(), func(kind string) bool { return kind != "Signaling" })
	if len(signals) != 2 {
		t.Errorf("%d signals: %q", len(signals), r.seen())
	}
}

// TestResumeOfAStart: a runner that was killed before it saved the start of the process leaves a change to the next
// one, which acts on it once.
func TestResumeOfAStart(t *testing.T) {
	t.Parallel()
	for mode, acted := range map[string]string{"signal": "hup", "restart": "up", "script": "script"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := newShared(t)
			s.put("v", "a", "1")
			r := s.run(says, follows(mode))
			r.untilFile("local/said", "up 1\n")
			r.edit = func(saved *interfaces.Saved) {
				task := saved.Tasks["main"]
				task.Handle, task.Phase = nil, "starting"
				saved.Tasks["main"] = task
			}
			r.resume(func() { s.put("v", "a", "2") })
			want := "up 1\n" + acted + " 2\n"
			r.untilFile("local/said", want)
			s.put("v", "a", "3")
			r.untilFile("local/said", want+acted+" 3\n")
		})
	}
}

// TestResumeFails: a template that can't be rendered any more fails its task also when another runner goes on, and the
// runner sees the end of the task's process.
func TestResumeFails(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.put("v", "a", "1")
	r := s.run(record, follows("noop"))
	r.untilFile("local/said", "up\n")
	r.resume(func() { s.denied.Store(true) })
	same.Says(t, nil, "Permission denied", r.wait(r.result), "it ended with")
	r.untilEvent("Killed")
}

// TestResumeWithoutAStore: while the store can't be read, a task that runs is watched by its next runner all the same.
func TestResumeWithoutAStore(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	s.put("v", "a", "1")
	r := s.run(`echo up > local/said; while [ ! -e local/end ]; do sleep 0.05; done`,
		follows("noop"))
	r.untilFile("local/said", "up\n")
	r.resume(func() { _ = s.store.Close() })
	must.OK(t, os.WriteFile(r.path("local/end"), nil, 0o600))
	_ = r.wait(r.result)
	r.untilEvent("Terminated: Exit Code: 0")
}

// TestRenderTemplates renders again at each restart that restart { render_templates = true } is about.
func TestRenderTemplates(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		s := newShared(t)
		task := &api.Task{Name: "main", Driver: "raw_exec",
			RestartPolicy: &api.RestartPolicy{RenderTemplates: &again},
			Templates:     []*api.Template{template("local/x", "rendered", "noop")},
			Config: map[string]any{"command": "/bin/sh", "args": []any{"-c",
				`cat local/x >> local/saw; echo >> local/saw; echo changed > local/x; sleep 1000`}}}
		r := s.runTask(task)
		r.untilFile("local/saw", "rendered\n")
		r.untilFile("local/x", "changed\n")
		r.until("restarted", func() bool { return r.runner.RestartTask(t.Context(), "main") == nil })
		want := "rendered\nchanged\n\n"
		if again {
			want = "rendered\nrendered\n"
		}
		r.untilFile("local/saw", want)
	}
}

// TestFailures: what can't be rendered fails the task before it starts, and no event or log has the value of a
// variable. The tests of package render have more that is hostile.
func TestFailures(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, text, want string }{
		{"a denied variable", `{{ nomadVar "denied/a" }}`,
			"Template failed: nomad.var.block(denied/a@default.global): Permission denied"},
		{"another region", `{{ nomadVar "a@default.elsewhere" }}`, "there is one region here, global"},
		{"no Consul", `{{ key "a" }}`, "Template failed: kv.block(a): no agent of Consul is configured: set consul.address"},
		{"no Vault", `{{ secret "a" "b=c" }}`, "the task has no token of Vault: set vault.address, and give the task a"},
		{"memory", `{{ $s := sprig_repeat 9000000000 "x" }}`, "MiB of memory"},
		{"a secret in an error", `{{ with nomadVar "v" }}{{ parseInt .a.Value }}{{ end }}`, "[redacted]"},
		{"a secret as a name", `{{ with nomadVar "v" }}{{ file .a.Value }}{{ end }}`,
			"Template failed: file([redacted]): the path must be absolute"},
		{"a changed secret as a name", `{{ with nomadVar "v" }}{{ file (toUpper .a.Value) }}{{ end }}`,
			"Template failed: file([redacted]): the path must be absolute"},
		{"a file of the machine", `{{ file "/etc/passwd" }}`, "it is outside of the task's directory"},
		{"a file above", `{{ file (print (env "NOMAD_TASK_DIR") "/../../../x") }}`, "it is outside of the task's directory"},
		{"a relative file", `{{ file "local/x" }}`, "the path must be absolute"},
		{"no file", `{{ file (print (env "NOMAD_TASK_DIR") "/none") }}`, "no such file"},
		{"a missing key", `{{ with nomadVar "v" }}{{ .none }}{{ end }}`, "map has no entry for key"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := newShared(t)
			s.put("v", "a", secret)
			strict := template("local/x", tc.text, "noop")
			strict.ErrMissingKey = new(true)
			s.run("sleep 1000", strict).wantFailure(tc.want)
		})
	}
	t.Run("an environment that is none", func(t *testing.T) {
		t.Parallel()
		s := newShared(t)
		s.put("v", "a", secret)
		env := template("local/env", `{{ with nomadVar "v" }}{{ .a }}{{ end }} no variable`, "noop")
		env.Envvars = new(true)
		s.run("sleep 1000", env).wantFailure("Template failed to read environment variables")
	})
}

// TestNewPerms: a start gives a file its mode, also when the content is there already.
func TestNewPerms(t *testing.T) {
	t.Parallel()
	file := template("local/x", "text", "noop")
	file.Perms = new("0600")
	again := &api.RestartPolicy{Attempts: new(1), Interval: new(time.Hour), Delay: new(time.Duration(0)),
		Mode: new("fail"), RenderTemplates: new(true)}
	task := &api.Task{Name: "main", Driver: "raw_exec", Templates: []*api.Template{file}, RestartPolicy: again,
		Config: map[string]any{"command": "/bin/sh", "args": []any{"-c",
			`stat -c %a local/x >> local/saw; chmod 644 local/x; test $(wc -l < local/saw) = 2 && sleep 1000`}}}
	newShared(t).runTask(task).untilFile("local/saw", "600\n600\n")
}

// TestReadsMuch: a file that a template reads by many names takes no more memory of this program than the bound.
func TestReadsMuch(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	r := s.run("sleep 1000", template("local/big", `{{ sprig_repeat 4000000 "x" }}`, "noop"), template("local/x",
		`{{ with nomadVar "v" }}{{ range split "," .names.Value }}{{ file (print (env "NOMAD_TASK_DIR") . "/big") }}`+
			`{{ end }}{{ end }}`, "noop"))
	r.until("written", func() bool { _, err := os.Stat(r.path("local/big")); return err == nil })
	s.put("v", "names", ",/.,/./.,/././.,/./././.,/././././.,/./././././.,/././././././.,/./././././././.")
	same.Says(t, nil, "may read 32 MiB together", r.wait(r.result), "it ended with")
}

// TestStaysInside: links of the task lead neither a file that is written nor one that is read out of its directories.
func TestStaysInside(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	outside := filepath.Join(t.TempDir(), "outside")
	must.OK(t, os.WriteFile(outside, []byte(secret), 0o600))
	s.put("v", "a", "1")
	r := s.run(`ln -s "`+outside+`" local/link; ln -s "`+filepath.Dir(outside)+`" local/dir; mkfifo local/fifo
		rm local/x; ln -s "`+outside+`" local/x; echo ready > local/ready; sleep 1000`,
		template("local/x", `{{ with nomadVar "v" }}{{ .a }}{{ end }}`, "noop"),
		template("local/read", `{{ if nomadVarExists "read" }}{{ with nomadVar "read" }}`+
			`{{ file (print (env "NOMAD_TASK_DIR") "/" .path) }}{{ end }}{{ end }}`, "noop"))
	r.untilFile("local/ready", "ready\n")
	s.put("v", "a", "2")
	r.untilFile("local/x", "2")
	if info, err := os.Lstat(r.path("local/x")); err != nil || !info.Mode().IsRegular() {
		t.Errorf("local/x: %v, %v", info, err)
	}
	if got, err := os.ReadFile(outside); string(got) != secret || err != nil {
		t.Errorf("the file outside is %q, %v", got, err)
	}
	s.put("read", "path", "link")
	same.Says(t, nil, "path escapes from parent", r.wait(r.result), "it ended with")
	if got, err := os.ReadFile(r.path("local/read")); len(got) > 0 || err != nil {
		t.Errorf("it read %q, %v", got, err)
	}
	r.wantNoSecret()
}

// TestADirectoryThatBecomesALink: a link in place of a file's directory is not followed, and fails the task.
func TestADirectoryThatBecomesALink(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	outside := t.TempDir()
	s.put("v", "a", "1")
	r := s.run(`rm -r local/sub; ln -s "`+outside+`" local/sub; echo ready > local/ready; sleep 1000`,
		template("local/sub/x", `{{ with nomadVar "v" }}{{ .a }}{{ end }}`, "noop"))
	r.untilFile("local/ready", "ready\n")
	s.put("v", "a", "2")
	same.Says(t, nil, "is a symbolic link and is not followed", r.wait(r.result), "it ended with")
	if names, err := os.ReadDir(outside); len(names) > 0 || err != nil {
		t.Errorf("outside there are %v, %v", names, err)
	}
}

// TestPaths: a destination or a source outside fails the start, and so does a source that is no file.
func TestPaths(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, source, destination, want string }{
		{"destination", "", "../../x", "template destination path escapes alloc directory"},
		{"destination of a reference", "", "../../${NOMAD_TASK_NAME}", "template destination path escapes alloc directory"},
		{"source", "/etc/passwd", "local/x", "template source path escapes alloc directory"},
		{"source above", "../../../x", "local/x", "template source path escapes alloc directory"},
		{"no source", "local/none", "local/x", "failed to read template"},
		{"a directory", "local", "local/x", "no regular file"},
		{"a directory at the destination", "", "local", "main/local: is a directory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			made := template(tc.destination, "x", "noop")
			if tc.source != "" {
				made.SourcePath, made.EmbeddedTmpl = &tc.source, new("")
			}
			r := newShared(t).run("sleep 1000", made)
			same.Says(t, nil, tc.want, r.wait(r.result), "it ended with")
		})
	}
}

// TestKilledWhileItWaits: the task ends at once, and nothing renders any more.
func TestKilledWhileItWaits(t *testing.T) {
	t.Parallel()
	s := newShared(t)
	r := s.run("sleep 1000", follows("restart"))
	r.untilEvent("Task Setup")
	must.OK(t, r.runner.Stop(t.Context(), interfaces.StopRequest{}))
	must.OK(t, r.wait(r.result))
	s.put("v", "a", "b")
	same.Error(t, os.ErrNotExist, same.Err(os.Stat(r.path("local/x"))), "a file of a task that was stopped")
}
