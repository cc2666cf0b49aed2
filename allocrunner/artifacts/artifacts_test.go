package artifacts_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/artifacts"
	"taskapi/allocrunner/artifacts/fetch"
	"taskapi/allocrunner/interfaces"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/proc"
	"taskapi/internal/same"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == fetch.Command {
		unix.Exit(fetch.Main(os.Args[2:])) // os.Exit would let the race detector sleep for a second
	}
	os.Exit(m.Run())
}

// deadline is for what takes milliseconds, and seconds on a busy machine.
var deadline = polltest.Deadline()

// environment has the variable X.
type environment string

func (e environment) Get(string) string { return string(e) }
func (e environment) List() []string    { return []string{"X=" + string(e)} }
func (e environment) ReplaceEnv(s string) string {
	return strings.ReplaceAll(s, "${X}", string(e))
}

// start is a start of a task, and what its hooks have done.
type start struct {
	interfaces.TaskLifecycle

	req interfaces.TaskPrestartRequest

	mu     sync.Mutex // guards events
	events []string
}

func (s *start) Event(kind, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, kind+": "+message)
}

func newStart(t *testing.T, list ...*api.TaskArtifact) *start {
	t.Helper()
	dir := t.TempDir()
	s := &start{}
	for _, a := range list {
		a.Canonicalize()
	}
	s.req = interfaces.TaskPrestartRequest{
		Task: &api.Task{Name: "t", Artifacts: list}, Env: environment("value"), Lifecycle: s,
		Dir: interfaces.TaskDir{AllocDir: dir, Dir: filepath.Join(dir, "t"), PrivateDir: filepath.Join(dir, "t", "private"),
			SharedDir: filepath.Join(dir, "alloc")},
		User: interfaces.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())},
	}
	s.req.Keep = func(kept map[string]string) { s.req.Kept = maps.Clone(kept) }
	must.OK(t, errors.Join(os.MkdirAll(s.req.Dir.Dir+"/local", 0o755),
		os.Mkdir(s.req.Dir.PrivateDir, 0o700), os.Mkdir(s.req.Dir.SharedDir, 0o755)))
	return s
}

func (s *start) prestart(ctx context.Context) (*interfaces.TaskPrestartResponse, error) {
	hook := artifacts.New(artifacts.DefaultSettings(), slog.New(slog.DiscardHandler), "t")
	return hook.Prestart(ctx, &s.req)
}

// server counts what is asked for, and answers by path.
type server struct {
	*httptest.Server

	mu    sync.Mutex // guards asked
	asked []string
}

func serve(t *testing.T, answer http.HandlerFunc) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked = append(s.asked, r.URL.RequestURI()+r.Header.Get("X-Token"))
		s.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(slices.Values(s.asked))
}

func TestWhatIsCompleteIsNotFetchedAgain(t *testing.T) {
	t.Parallel()
	var fixed atomic.Bool
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/b" && !fixed.Load() {
			http.Error(w, "no", http.StatusTeapot)
			return
		}
		_, _ = io.WriteString(w, r.URL.Path)
	})
	run := newStart(t,
		&api.TaskArtifact{GetterSource: new(s.URL + "/a?q=${X}"), RelativeDest: new("../alloc/${X}"),
			GetterHeaders: map[string]string{"X-Token": "-${X}"}},
		&api.TaskArtifact{GetterSource: new(s.URL + "/b"), GetterMode: new("file"), RelativeDest: new("/local/c"),
			GetterOptions: map[string]string{"token": "${X}"}})
	resp, err := run.prestart(t.Context())
	hookError, ok := errors.AsType[*interfaces.HookError](err)
	if resp != nil || !ok || hookError.Kind != "Failed Artifact Download" || !strings.Contains(err.Error(), "418") ||
		strings.Contains(err.Error(), "value") {
		t.Errorf("%v, %v", resp, err)
	}
	fixed.Store(true)
	if _, err = run.prestart(t.Context()); err != nil {
		t.Error(err)
	}
	want := []string{"/a?q=value-value", "/b?token=value", "/b?token=value"}
	same.As(t, want, s.requests(), "asked for")
	for file, want := range map[string]string{"alloc/value/a": "/a", "t/local/c": "/b"} {
		if got, err := os.ReadFile(filepath.Join(run.req.Dir.AllocDir, file)); string(got) != want || err != nil {
			t.Errorf("%s is %q, %v", file, got, err)
		}
	}
	if n := len(run.events); n != 2 {
		t.Errorf("events: %q", run.events)
	}
	if _, err := run.prestart(t.Context()); err != nil || len(s.requests()) != 3 {
		t.Errorf("at a restart: %v, %q", err, s.requests())
	}
	run.req.Kept, run.req.Restored = nil, true
	if _, err := run.prestart(t.Context()); err != nil || len(s.requests()) != 3 {
		t.Errorf("for a process that runs: %v, %q", err, s.requests())
	}
}

// TestAnotherVersionOfTheJob gets its artifacts in the place of the earlier ones, and the version before them gets its
// own again, also if the process has ended in between. What both have is not fetched again.
func TestAnotherVersionOfTheJob(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/none" {
			http.Error(w, "no", http.StatusNotFound)
		}
		_, _ = io.WriteString(w, r.URL.Path)
	})
	file := func(path, to string) *api.TaskArtifact {
		a := &api.TaskArtifact{GetterSource: new(s.URL + path), GetterMode: new("file"), RelativeDest: new("local/" + to)}
		a.Canonicalize()
		return a
	}
	run := newStart(t)
	synced := 0
	run.req.Sync = func() error { synced++; return nil }
	version := func(fails bool, list ...*api.TaskArtifact) {
		t.Helper()
		run.req.Task.Artifacts = list
		if _, err := run.prestart(t.Context()); (err != nil) != fails {
			t.Error(err)
		}
	}
	both := file("/both", "both")
	version(false)
	version(false, both, file("/old", "file"))
	version(true, both, file("/none", "file"))
	version(false, both, file("/old", "file"))
	version(false, both, file("/new", "file"))
	if got, err := os.ReadFile(filepath.Join(run.req.Dir.Dir, "local/file")); string(got) != "/new" || err != nil {
		t.Errorf("the file is %q, %v", got, err)
	}
	version(false)
	version(false, file("/new", "file"))
	want := []string{"/both", "/new", "/new", "/none", "/old", "/old"}
	same.As(t, want, s.requests(), "asked for")
	same.As(t, 3, synced, "times that something was forgotten, on the disk")
}

// TestTheFetchingProcessIsKilled: that is a failure to be tried again, and nothing is left behind.
func TestTheFetchingProcessIsKilled(t *testing.T) { // not parallel: it kills all such children
	asked := make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		close(asked)
		<-r.Context().Done()
	})
	run := newStart(t, &api.TaskArtifact{GetterSource: new(s.URL + "/a")})
	go func() {
		<-asked
		children, _ := proc.Children(os.Getpid())
		for _, pid := range children {
			if strings.Contains(proc.Args(pid), fetch.Command) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	same.Says(t, nil, "signal: killed", same.Err(run.prestart(ctx)))
	if left, _ := filepath.Glob(run.req.Dir.PrivateDir + "/.artifact*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		a     api.TaskArtifact
		words string
	}{
		"outside":      {api.TaskArtifact{GetterSource: new("https://h/a"), RelativeDest: new("../../x")}, "escapes"},
		"another task": {api.TaskArtifact{GetterSource: new("https://h/a"), RelativeDest: new("../other")}, "escapes"},
		"a reference":  {api.TaskArtifact{GetterSource: new("${X}://u:secret@h/a?t=secret")}, `kind "value"`},
		"an option": {api.TaskArtifact{GetterSource: new("git::https://h/a?sshkey=secret"),
			GetterOptions: map[string]string{"depth": "${X}"}}, "depth"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := newStart(t, &c.a)
			_, err := run.prestart(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.words) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want %q", err, c.words)
			}
		})
	}
}

func TestParseSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"1": 1, "10GB": 10e9, "10 GiB": 10 << 30, "1.5kb": 1500, "2MiB": 2 << 20, "7B": 7, "3T": 0, "": 0, "0": 0, "-1": 0,
		"1e30": 0, "NaN": 0, "GB": 0, "inf": 0,
	} {
		got, err := artifacts.ParseSize(text)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
}
