package checks_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
	"go.uber.org/goleak"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/checks"
	"taskapi/allocrunner/internal/services"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func TestMain(m *testing.M) {
	trustTestServers()
	goleak.VerifyTestMain(m)
}

// newAlloc returns an allocation with one group service, on the port http, that has these checks.
func newAlloc(list ...api.ServiceCheck) *api.Allocation {
	group := &api.TaskGroup{
		Name:     new("web"),
		Tasks:    []*api.Task{{Name: "server"}},
		Services: []*api.Service{{Name: "demo-web", Provider: "nomad", PortLabel: "http", AddressMode: "auto", Checks: list}},
	}
	return &api.Allocation{
		ID: "c0d1e142-a4a0-95b1-a59a-729f2d54a5d4", Name: "demo.web[0]", TaskGroup: "web",
		Job: &api.Job{ID: new("demo"), TaskGroups: []*api.TaskGroup{group}},
	}
}

func tcpCheck(name string) api.ServiceCheck {
	return api.ServiceCheck{Name: name, Type: "tcp", OnUpdate: "require_healthy", Interval: 2 * time.Second,
		Timeout: time.Second}
}

func httpCheck(name, path string) api.ServiceCheck {
	c := tcpCheck(name)
	c.Type, c.Path = "http", path
	return c
}

func onPort(port int) []api.PortMapping {
	return []api.PortMapping{{Label: "http", Value: port, HostIP: "127.0.0.1"}}
}

func newConfig(alloc *api.Allocation) checks.Config {
	made := time.Now()
	return checks.Config{
		Alloc: alloc, Resolver: services.Resolver{Ports: onPort(20530)}, Version: "1.2.3", Logger: slog.New(
			slog.NewTextHandler(io.Discard, nil)),
		Provider: func(string) (interfaces.ServiceProvider, bool) { return nil, false },
		OnChange: func() {}, Restart: func(string, string) {}, Up: func(string) time.Time { return made },
	}
}

// started is when each task was last started, and the group's under the empty name; those that are not in it are not
// up.
type started struct {
	mu sync.Mutex // guards at
	at map[string]time.Time
}

func (s *started) up(task string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at[task]
}

func (s *started) set(task string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		s.at = map[string]time.Time{}
	}
	s.at[task] = at
}

// begin begins the group and all tasks.
func begin(r *checks.Runner, alloc *api.Allocation) {
	r.Begin("")
	for _, task := range alloc.GetTaskGroup().Tasks {
		r.Begin(task.Name)
	}
}

// start makes a runner, begins all tasks, and runs it to the end of the test.
func start(t *testing.T, cfg checks.Config) *checks.Runner {
	t.Helper()
	r := run(t, cfg)
	begin(r, cfg.Alloc)
	return r
}

// pastFirst is longer than a first run may be put off.
const pastFirst = 201 * time.Millisecond

// byName gives the results by the check's name.
func byName(r *checks.Runner) map[string]api.AllocCheckStatus {
	out := map[string]api.AllocCheckStatus{}
	statuses, _ := r.Results()
	for id, s := range statuses {
		if id != s.ID {
			panic("a result under another ID than its own")
		}
		out[s.Check] = s
	}
	return out
}

// dialer is a network of its own: every dial takes its time and ends with its error, or with a connection.
type dialer struct {
	takes time.Duration

	mu    sync.Mutex // guards the fields below
	err   error
	first time.Time
	at    []time.Duration // when dials began, since the first
	busy  int
	most  int // dials at once
}

func (d *dialer) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

func (d *dialer) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.first.IsZero() {
		d.first = time.Now()
	}
	d.at = append(d.at, time.Since(d.first))
	d.busy++
	d.most = max(d.most, d.busy)
}

func (d *dialer) end() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.busy--
	return d.err
}

func (d *dialer) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	d.begin()
	select {
	case <-time.After(d.takes):
	case <-ctx.Done():
		d.end()
		return nil, ctx.Err()
	}
	if err := d.end(); err != nil {
		return nil, err
	}
	client, server := net.Pipe()
	server.Close()
	return client, nil
}

func TestSchedule(t *testing.T) {
	for name, c := range map[string]struct {
		takes    time.Duration
		interval time.Duration
		timeout  time.Duration
		want     []time.Duration
		status   string
	}{
		"each interval": {0, 2 * time.Second, time.Second, []time.Duration{0, 2 * time.Second, 4 * time.Second,
			6 * time.Second}, "success"},
		"no drift": {700 * time.Millisecond, 2 * time.Second, time.Second,
			[]time.Duration{0, 2 * time.Second, 4 * time.Second, 6 * time.Second}, "success"},
		"a long run costs runs": {5 * time.Second, 2 * time.Second, 9 * time.Second, []time.Duration{0, 6 * time.Second},
			"success"},
		"a timeout ends a run": {time.Hour, 2 * time.Second, 3 * time.Second, []time.Duration{0, 4 * time.Second},
			"failure"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				check := tcpCheck("tcp")
				check.Interval, check.Timeout = c.interval, c.timeout
				d := &dialer{takes: c.takes}
				cfg := newConfig(newAlloc(check))
				cfg.DialContext = d.dial
				r := start(t, cfg)
				time.Sleep(7*time.Second + 500*time.Millisecond)
				synctest.Wait()
				same.As(t, c.want, d.at, "runs began at")
				same.As(t, 1, d.most, "runs of one check at once")
				same.As(t, c.status, byName(r)["tcp"].Status, "status")
			})
		})
	}
}

func TestResultsFromPendingToStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("dial tcp 127.0.0.1:20530: connect: connection refused")
		d := &dialer{takes: 500 * time.Millisecond, err: refused}
		cfg := newConfig(newAlloc(tcpCheck("tcp")))
		changes := 0
		cfg.DialContext, cfg.OnChange = d.dial, func() { changes++ }
		r := must.Get(checks.New(cfg))(t)
		if got, version := r.Results(); got != nil || version != 0 {
			t.Errorf("before Run: %v, version %d", got, version)
		}
		done := make(chan struct{})
		begin(r, cfg.Alloc)
		go func() { defer close(done); r.Run(t.Context()) }()
		synctest.Wait()
		now := time.Now().Unix()
		want := api.AllocCheckStatus{
			ID:    "0ceb1a6f9e16a51a13d70fc210677c8693bffdf94cd87300a456df9858f98612", // as recorded from Nomad
			Check: "tcp", Group: "demo.web[0]", Service: "demo-web", Mode: "healthiness",
			Status: "pending", Output: "nomad: waiting to run", Timestamp: now,
		}
		expect := func(version uint64) {
			t.Helper()
			got, v := r.Results()
			if diff := cmp.Diff(api.AllocCheckStatuses{want.ID: want}, got); diff != "" || v != version {
				t.Errorf("version %d, want %d; results (-want +got):\n%s", v, version, diff)
			}
		}
		expect(1)
		old, _ := r.Results()
		time.Sleep(time.Second)
		synctest.Wait()
		want.Status, want.Output = "failure", refused.Error()
		expect(2)
		same.As(t, "pending", old[want.ID].Status, "results that were read have changed")
		d.fail(nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		want.Status, want.Output, want.Timestamp = "success", "nomad: tcp ok", now+2
		expect(3)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		want.Timestamp = now + 4 // the same again: shown, and not reported
		expect(4)
		time.Sleep(1100 * time.Millisecond) // into the fourth run
		synctest.Wait()
		r.Stop()
		if got, version := r.Results(); got != nil || version != 5 {
			t.Errorf("after Stop: %v, version %d", got, version)
		}
		<-done
		r.Stop()
		if got, version := r.Results(); got != nil || version != 5 {
			t.Errorf("after Run: %v, version %d", got, version)
		}
		same.As(t, 4, changes, "changes reported")
	})
}

func TestStopBeforeRun(t *testing.T) {
	cfg := newConfig(newAlloc(tcpCheck("tcp")))
	cfg.DialContext = func(context.Context, string, string) (net.Conn, error) {
		t.Error("a check ran")
		return nil, io.EOF
	}
	r := must.Get(checks.New(cfg))(t)
	r.Stop()
	r.Run(t.Context())
	if got, _ := r.Results(); got != nil {
		t.Errorf("results: %v", got)
	}
}

func TestWithoutChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := newAlloc()
		consul := tcpCheck("other provider's")
		alloc.GetTaskGroup().Services = append(alloc.GetTaskGroup().Services,
			&api.Service{Name: "c", Provider: "consul", PortLabel: "nope", Checks: []api.ServiceCheck{consul}})
		r := start(t, newConfig(alloc))
		time.Sleep(time.Hour)
		if got, version := r.Results(); got != nil || version != 0 {
			t.Errorf("results %v, version %d", got, version)
		}
	})
}

// IDs are Nomad's, so they were recorded from it.
func TestIDs(t *testing.T) {
	alloc := newAlloc(httpCheck("alive", "/"), tcpCheck("tcp"))
	twin := *alloc.GetTaskGroup().Services[0]
	twin.Name = "twin"
	alloc.GetTaskGroup().Services = append(alloc.GetTaskGroup().Services, &twin)
	synctest.Test(t, func(t *testing.T) {
		cfg := newConfig(alloc)
		cfg.DialContext = func(context.Context, string, string) (net.Conn, error) { return nil, io.EOF }
		r := start(t, cfg)
		time.Sleep(pastFirst)
		synctest.Wait()
		got, _ := r.Results()
		for id, name := range map[string]string{
			"7244d981f6d4d23d9ae45ed5e312069a0052f4f9e5b6c5f3946446ad0c6c5c74": "alive",
			"0ceb1a6f9e16a51a13d70fc210677c8693bffdf94cd87300a456df9858f98612": "tcp",
		} {
			if s := got[id]; s.Check != name || s.Service != "demo-web" {
				t.Errorf("result %s is %+v, want %s", id, s, name)
			}
		}
		if len(got) != 4 {
			t.Errorf("%d results, want 4: checks that Nomad gives one ID hide each other", len(got))
		}
	})
}

func TestFieldsOfTaskServices(t *testing.T) {
	alloc := newAlloc()
	check := tcpCheck("")
	check.OnUpdate, check.PortLabel = "ignore", "${PORT}"
	alloc.GetTaskGroup().Tasks[0].Services = []*api.Service{
		{Name: "svc-${WHO}", Provider: "nomad", PortLabel: "http", Checks: []api.ServiceCheck{check}},
	}
	synctest.Test(t, func(t *testing.T) {
		cfg := newConfig(alloc)
		var dialled string
		cfg.DialContext = func(_ context.Context, _, address string) (net.Conn, error) {
			dialled = address
			return nil, io.EOF
		}
		cfg.Replace = func(task, s string) string {
			return strings.NewReplacer("${WHO}", "of-"+task, "${PORT}", "8080").Replace(s)
		}
		r := start(t, cfg)
		time.Sleep(pastFirst)
		synctest.Wait()
		got := byName(r)[`service: "svc-of-server" check`]
		want := api.AllocCheckStatus{
			ID: got.ID, Check: `service: "svc-of-server" check`, Group: "demo.web[0]", Service: "svc-of-server", Task: "server",
			Mode: "readiness", Status: "failure", Output: "EOF", Timestamp: time.Now().Unix(),
		}
		if diff := cmp.Diff(want, got); diff != "" || len(got.ID) != 64 {
			t.Errorf("result (-want +got):\n%s", diff)
		}
		same.As(t, "127.0.0.1:8080", dialled, "dialled")
	})
}

func TestAddress(t *testing.T) {
	for name, c := range map[string]struct {
		service api.Service
		check   api.ServiceCheck
		want    string
	}{
		"port of the service": {api.Service{PortLabel: "http"}, api.ServiceCheck{}, "127.0.0.1:20530"},
		"port of the check":   {api.Service{PortLabel: "http"}, api.ServiceCheck{PortLabel: "admin"}, "127.0.0.2:20531"},
		"number":              {api.Service{PortLabel: "8080"}, api.ServiceCheck{}, "127.0.0.9:8080"},
		"label like a number": {api.Service{PortLabel: "7"}, api.ServiceCheck{}, "127.0.0.7:20532"},
		"address given": {api.Service{PortLabel: "http", Address: "::1"}, api.ServiceCheck{AddressMode: "host"},
			"[::1]:20530"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.service.Name, c.service.Provider = "s", "nomad"
				c.check.Type, c.check.Interval, c.check.Timeout = "tcp", time.Second, time.Second
				c.service.Checks = []api.ServiceCheck{c.check}
				alloc := newAlloc()
				alloc.GetTaskGroup().Services = []*api.Service{&c.service}
				cfg := newConfig(alloc)
				cfg.HostIP = "127.0.0.9"
				cfg.Ports = []api.PortMapping{
					{Label: "http", Value: 20530, To: 80, HostIP: "127.0.0.1"}, {Label: "admin", Value: 20531, HostIP: "127.0.0.2"},
					{Label: "7", Value: 20532, HostIP: "127.0.0.7"},
				}
				var got string
				cfg.DialContext = func(_ context.Context, _, address string) (net.Conn, error) {
					got = address
					return nil, io.EOF
				}
				start(t, cfg)
				time.Sleep(pastFirst)
				synctest.Wait()
				same.As(t, c.want, got, "dialled")
			})
		})
	}
}

func TestInvalid(t *testing.T) {
	change := func(f func(*api.ServiceCheck)) *api.Allocation {
		c := httpCheck("c", "/")
		f(&c)
		return newAlloc(c)
	}
	for name, c := range map[string]struct {
		alloc *api.Allocation
		want  string
	}{
		"type": {change(func(c *api.ServiceCheck) { c.Type = "grpc" }),
			`type is "grpc": it must be "http", "tcp" or "script"`},
		"interval": {change(func(c *api.ServiceCheck) { c.Interval = 0 }), `interval is "0s"`},
		"timeout":  {change(func(c *api.ServiceCheck) { c.Timeout = -1 }), `timeout is "-1ns"`},
		"protocol": {change(func(c *api.ServiceCheck) { c.Protocol = "gopher" }),
			`protocol is "gopher": it must be "http" or "https"`},
		"label":        {change(func(c *api.ServiceCheck) { c.PortLabel = "nope" }), `port is "nope"`},
		"number":       {change(func(c *api.ServiceCheck) { c.PortLabel = "65536" }), `port is "65536"`},
		"address mode": {change(func(c *api.ServiceCheck) { c.AddressMode = "driver" }), `address_mode is "driver"`},
		"method": {change(func(c *api.ServiceCheck) { c.Method = "GET /" }),
			`method is "GET /": it must be an HTTP method`},
		"path":        {change(func(c *api.ServiceCheck) { c.Path = "http://example.com/" }), "path of a URL alone"},
		"path of two": {change(func(c *api.ServiceCheck) { c.Path = "//example.com/" }), "path of a URL alone"},
		"path unclear": {change(func(c *api.ServiceCheck) { c.Path = "/%zz" }),
			`path is "/%zz": it must be the path of a URL`},
		"group": {&api.Allocation{TaskGroup: "nope", Job: newAlloc().Job}, `no group "nope"`},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := checks.New(newConfig(c.alloc))
			if r != nil || !errors.Is(err, checks.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want ErrInvalid that says %s", err, c.want)
			}
		})
	}
}
