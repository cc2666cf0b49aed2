package handlers_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/handlers/allocations"
	"taskapi/handlers/apierror"
	"taskapi/handlers/events"
	"taskapi/handlers/exec"
	"taskapi/handlers/files"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/jobs"
	"taskapi/handlers/node"
	"taskapi/identity"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

const (
	allocID    = "c0d1e142-a4a0-95b1-a59a-729f2d54a5d4" // the one in testdata
	otherID    = "11111111-2222-3333-4444-555555555555"
	goodToken  = "good"  // every capability that a task has
	nomadToken = "nomad" // what Nomad's implicit policy gives
	poorToken  = "poor"  // authenticated, nothing else
	readToken  = "read"  // may read, and change nothing
	execToken  = "exec"  // may run commands, nothing else
	nodeToken  = "node"  // may use the machine, and read no job
	operator   = "operator"
	boom       = "boom" // makes the fake authenticator panic
)

// fakeAuthenticator knows these tokens.
type fakeAuthenticator struct{}

func (fakeAuthenticator) Authenticate(r *http.Request, owner auth.Owner, _ auth.Peer) (*auth.Principal, *auth.Denial) {
	claims := identity.Claims{
		ID: "jti-1", Subject: "global:default:demo:web:server:default", Audience: []string{"nomadproject.io"},
		IssuedAt: 1795253490, NotBefore: 1795253490, ExpiresAt: 1795257090,
		Namespace: "default", JobID: "demo", AllocationID: owner.AllocationID, Task: "server",
	}
	principal := &auth.Principal{Claims: claims, TaskGroup: "web", Capabilities: auth.CapabilitySet(auth.Authenticated)}
	switch r.Header.Get("X-Nomad-Token") {
	case "":
		return nil, unauthorized
	case goodToken:
		principal.Capabilities = auth.DefaultTask
	case nomadToken:
		principal.Capabilities = auth.ImplicitTask
	case readToken:
		principal.Capabilities = principal.Capabilities.With(auth.ReadJob, auth.ReadLogs, auth.ReadFS)
	case operator:
		principal.Claims.Role, principal.Claims.Task = identity.RoleOperator, ""
		principal.Capabilities = ^auth.CapabilitySet(0)
	case execToken:
		principal.Capabilities = principal.Capabilities.With(auth.AllocExec)
	case nodeToken:
		principal.Capabilities = principal.Capabilities.With(auth.NodeRead, auth.NodeWrite)
	case poorToken:
	case boom:
		panic("the authenticator fell in")
	default:
		return nil, forbidden
	}
	return principal, nil
}

// Recheck never changes its mind.
func (fakeAuthenticator) Recheck(*http.Request, *auth.Principal, auth.Owner, auth.Peer) *auth.Denial {
	return nil
}

func (fakeAuthenticator) Authorize(p *auth.Principal, anyOf auth.CapabilitySet) *auth.Denial {
	if p.Capabilities&anyOf == 0 {
		return permissionDenied
	}
	return nil
}

// fakeAlloc is an allocation made of functions; a nil one is not expected to be called.
type fakeAlloc struct {
	snapshot       func() *api.Allocation
	wait           func(ctx context.Context, index uint64) *api.Allocation
	checks         func() (api.AllocCheckStatuses, uint64)
	restartTask    func(ctx context.Context, task string) error
	restartRunning func(ctx context.Context) error
	restartAll     func(ctx context.Context) error
	signal         func(ctx context.Context, task, signal string) error
	paused         map[string]interfaces.ScheduleState // of tasks; pauses change it unless it is nil
	pauseErr       error
	stop           func(ctx context.Context, noShutdownDelay bool) error
	kill           func()
	touch          func() bool
	collect        func(ctx context.Context) error
	dispatch       func(d interfaces.Dispatch) (interfaces.Child, error)
	stats          func(ctx context.Context, interval time.Duration) (<-chan *api.AllocResourceUsage, error)
	files          func(reader *interfaces.Reader) interfaces.Files
	exec           func(ctx context.Context, req interfaces.ExecRequest) (interfaces.ExecSession, error)
	raw            func(ctx context.Context, w io.Writer)
	upgrade        func(ctx context.Context, w http.ResponseWriter, r *http.Request) error
}

func (f *fakeAlloc) Snapshot() *api.Allocation { return f.snapshot() }
func (f *fakeAlloc) Wait(ctx context.Context, index uint64) *api.Allocation {
	return f.wait(ctx, index)
}
func (f *fakeAlloc) Checks() (api.AllocCheckStatuses, uint64) { return f.checks() }
func (f *fakeAlloc) RestartTask(ctx context.Context, task string) error {
	return f.restartTask(ctx, task)
}
func (f *fakeAlloc) RestartRunning(ctx context.Context) error { return f.restartRunning(ctx) }
func (f *fakeAlloc) RestartAll(ctx context.Context) error     { return f.restartAll(ctx) }
func (f *fakeAlloc) Signal(ctx context.Context, task, signal string) error {
	return f.signal(ctx, task, signal)
}
func (f *fakeAlloc) Stats(ctx context.Context, interval time.Duration) (<-chan *api.AllocResourceUsage, error) {
	return f.stats(ctx, interval)
}
func (f *fakeAlloc) PauseState(task string) (interfaces.ScheduleState, error) {
	return f.paused[task], nil
}
func (f *fakeAlloc) SetPauseState(_ context.Context, task string, to interfaces.ScheduleState) error {
	if f.paused != nil {
		f.paused[task] = to
	}
	return f.pauseErr
}
func (f *fakeAlloc) Kill()       { f.kill() }
func (f *fakeAlloc) Touch() bool { return f.touch != nil && f.touch() }

// Dispatch starts a child of a fixed name, unless the test has a function for it.
func (f *fakeAlloc) Dispatch(_ context.Context, d interfaces.Dispatch) (interfaces.Child, error) {
	if f.dispatch == nil {
		return interfaces.Child{JobID: "demo/dispatch-1"}, nil
	}
	return f.dispatch(d)
}

// Force is a dispatch of nothing.
func (f *fakeAlloc) Force(ctx context.Context) (interfaces.Child, error) {
	return f.Dispatch(ctx, interfaces.Dispatch{})
}

func (f *fakeAlloc) Collect(ctx context.Context) error                { return f.collect(ctx) }
func (f *fakeAlloc) Raw(ctx context.Context, w io.Writer)             { f.raw(ctx, w) }
func (f *fakeAlloc) Files(reader *interfaces.Reader) interfaces.Files { return f.files(reader) }
func (f *fakeAlloc) Exec(ctx context.Context, req interfaces.ExecRequest) (interfaces.ExecSession, error) {
	return f.exec(ctx, req)
}
func (f *fakeAlloc) Upgrade(ctx context.Context, w http.ResponseWriter, r *http.Request) error {
	return f.upgrade(ctx, w, r)
}

func (f *fakeAlloc) Stop(ctx context.Context, noShutdownDelay bool) error {
	return f.stop(ctx, noShutdownDelay)
}

// fakeJobs is a handlers.Jobs made of functions.
type fakeJobs struct {
	register func(ctx context.Context, job *api.Job, submission *api.JobSubmission, allowed jobs.Allowed) (
		jobs.Registration, error)
	plan func(ctx context.Context, job *api.Job) (jobs.Plan, error)
}

func (f *fakeJobs) Register(ctx context.Context, job *api.Job, submission *api.JobSubmission,
	allowed jobs.Allowed) (jobs.Registration, error) {
	return f.register(ctx, job, submission, allowed)
}
func (f *fakeJobs) Plan(ctx context.Context, job *api.Job) (jobs.Plan, error) {
	return f.plan(ctx, job)
}

// quietJobs answers every call.
func quietJobs() *fakeJobs {
	return &fakeJobs{
		register: func(context.Context, *api.Job, *api.JobSubmission, jobs.Allowed) (jobs.Registration, error) {
			return jobs.Registration{Index: 35}, nil
		},
		plan: func(context.Context, *api.Job) (jobs.Plan, error) { return jobs.Plan{}, nil },
	}
}

// everyRoute makes no route a 404 for want of something behind it.
func everyRoute(c *handlers.Config) {
	empty := func() ([]byte, error) { return []byte("{}"), nil }
	c.JWKS, c.OpenIDConfiguration, c.Jobs, c.Events = empty, empty, quietJobs(), events.New()
	c.Services = stayingServices{newFakeServices(instance("default", "x", allocID, 80))}
	c.Host = func(context.Context) (*api.HostStats, time.Time, error) {
		return &api.HostStats{}, time.Unix(1, 0), nil
	}
	c.Variables = lastingVariables{newFakeVariables("nomad/jobs/demo")}
	c.Machine, c.Parser, c.History, c.Log = newMachine(), fakeParser{}, twoVersions(), &fakeLog{lines: make(chan []byte)}
}

// allocs is a handlers.Allocs of the one allocation, and of otherID, which is not the callers' to see.
type allocs struct{ *fakeAlloc }

func (a allocs) Get(id string) (route.Alloc, bool) {
	return a.fakeAlloc, id == allocID || id == otherID
}

var _ interface {
	allocations.Checker
	allocations.Collector
	files.Filer
	exec.Execer
	allocations.Restarter
	allocations.Signaler
	allocations.Stopper
	interfaces.Toucher
	allocations.Measured
} = (*fakeAlloc)(nil)

// recorded returns a file of testdata, decoded.
func recorded[T any](tb testing.TB, name string) T {
	tb.Helper()
	content := must.Read(tb, filepath.Join("testdata", name))
	var value T
	if err := json.Unmarshal(content, &value); err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	return value
}

// sending returns what sends one sample, or none for nil, until its context ends.
func sending(sample *api.AllocResourceUsage) func(context.Context, time.Duration) (
	<-chan *api.AllocResourceUsage, error) {
	return func(ctx context.Context, _ time.Duration) (<-chan *api.AllocResourceUsage, error) {
		out := make(chan *api.AllocResourceUsage, 1)
		if sample != nil {
			out <- sample
		}
		context.AfterFunc(ctx, func() { close(out) })
		return out, nil
	}
}

// newAlloc returns the recorded allocation, with its checks and no actions.
func newAlloc(tb testing.TB) *fakeAlloc {
	tb.Helper()
	alloc := recorded[*api.Allocation](tb, "allocation.json")
	results := recorded[api.AllocCheckStatuses](tb, "checks.json")
	return &fakeAlloc{
		snapshot: func() *api.Allocation { return alloc },
		checks:   func() (api.AllocCheckStatuses, uint64) { return results, 1 },
		stats:    sending(recorded[*api.AllocResourceUsage](tb, "stats.json")),
	}
}

// server is the API on a unix socket.
type server struct {
	path string
	log  *polltest.Log
	stop func()

	mu      sync.Mutex // guards the fields below
	records []auth.Record
	full    bool // the audit log
}

// Audit keeps the record.
func (s *server) Audit(record auth.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = append(s.records, record)
}

// Begin refuses every change once the log is said to be full.
func (s *server) Begin(record auth.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if record.Outcome != auth.Begun || record.Status != 0 {
		return errors.New("not a record of what is about to be done")
	}
	if s.full {
		return auth.ErrAudit
	}
	return nil
}

func (s *server) audited() []auth.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records
}

// peer is who every connection of the tests comes from.
var peer = auth.Peer{UID: 1000, GID: 1000, PID: 4242}

// taskSocket is whose socket most tests are about.
var taskSocket = auth.Owner{AllocationID: allocID, Task: "server", UID: peer.UID}

// newServer serves the allocation on a task's socket, with the fake authenticator unless change puts another one in.
func newServer(tb testing.TB, alloc *fakeAlloc, change ...func(*handlers.Config)) *server {
	tb.Helper()
	return newServerOf(tb, taskSocket, alloc, change...)
}

// newServerOf is newServer on another's socket.
func newServerOf(tb testing.TB, owner auth.Owner, alloc *fakeAlloc, change ...func(*handlers.Config)) *server {
	tb.Helper()
	s := &server{log: new(polltest.Log)}
	config := handlers.Config{
		Server: handlers.Server{
			Authenticator: fakeAuthenticator{}, Allocs: allocs{alloc}, Auditor: s,
			PeerOf: func(net.Conn) (auth.Peer, error) { return peer, nil },
			Logger: slog.New(slog.NewTextHandler(s.log, nil)),
		},
		Node: handlers.Node{Agent: node.Agent{Version: "1.2.3", NomadVersion: "2.0.6-dev", Region: "global",
			Datacenter: "dc1", NodeID: otherID, NodeName: "vm"}},
	}
	for _, f := range change {
		f(&config)
	}
	dir, err := os.MkdirTemp("", "handlers") // the path of a TempDir can be too long for a socket
	must.OK(tb, err)
	s.path = filepath.Join(dir, "api.sock")
	listener := must.Get(net.Listen("unix", s.path))(tb)
	ctx, cancel := context.WithCancel(tb.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- handlers.NewWithTestRoutes(config).Serve(ctx, listener, owner)
	}()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			tb.Errorf("Serve = %v, want nil after its context ended", err)
		}
		_ = os.RemoveAll(dir)
	})
	tb.Cleanup(s.stop)
	return s
}

// sdk returns the unmodified SDK over the socket.
func (s *server) sdk(tb testing.TB, token string) *api.Client {
	tb.Helper()
	client := must.Get(api.NewClient(&api.Config{Address: "unix://" + s.path, SecretID: token}))(tb)
	tb.Cleanup(client.Close)
	return client
}

// reply is an answer, read whole.
type reply struct {
	Status int
	Header http.Header
	Body   string
}

// do sends one request on a connection of its own.
func (s *server) do(tb testing.TB, method, target, token, body string) reply {
	tb.Helper()
	request, err := http.NewRequestWithContext(tb.Context(), method, "http://local"+target, strings.NewReader(body))
	must.OK(tb, err)
	if token != "" {
		request.Header.Set("X-Nomad-Token", token)
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", s.path)
		},
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		tb.Fatalf("%s %s: %v", method, target, err)
	}
	return readReply(tb, response)
}

func readReply(tb testing.TB, response *http.Response) reply {
	tb.Helper()
	defer response.Body.Close()
	content := must.Get(io.ReadAll(response.Body))(tb)
	return reply{response.StatusCode, response.Header, string(content)}
}

// conn is a raw connection.
type conn struct {
	net.Conn
	*bufio.Reader
}

func (s *server) dial(tb testing.TB) conn {
	tb.Helper()
	raw := must.Get(net.Dial("unix", s.path))(tb)
	tb.Cleanup(func() { _ = raw.Close() })
	if err := raw.SetDeadline(time.Now().Add(polltest.Deadline())); err != nil { // a hung test ends
		tb.Fatal(err)
	}
	return conn{raw, bufio.NewReader(raw)}
}

// once is send on a connection of its own.
func (s *server) once(tb testing.TB, method, text string) reply {
	tb.Helper()
	c := s.dial(tb)
	defer c.Close()
	return c.send(tb, method, text)
}

func (c conn) Read(p []byte) (int, error) { return c.Reader.Read(p) }

// send writes text and reads one answer to the method.
func (c conn) send(tb testing.TB, method, text string) reply {
	tb.Helper()
	must.Get(io.WriteString(c.Conn, text))(tb)
	response, err := http.ReadResponse(c.Reader, &http.Request{Method: method})
	if err != nil {
		tb.Fatalf("%q: %v", text[:min(len(text), 80)], err)
	}
	if (strings.Contains(text, streamPath) || strings.Contains(text, monitorPath+" ")) &&
		response.StatusCode == http.StatusOK { // it never ends
		return reply{Status: response.StatusCode, Header: response.Header}
	}
	return readReply(tb, response)
}

// runnerError is an error of the kind, as the wiring makes them from a runner's.
func runnerError(kind apierror.Kind, args ...any) error {
	return apierror.New(kind, args...).Because(errors.New("the runner's own words"))
}
