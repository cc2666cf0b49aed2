package checks_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/internal/checks"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
	"taskapi/internal/same"
)

// watched is a runner whose changes can be waited for.
type watched struct {
	*checks.Runner
	changed chan struct{}
}

// startWatched starts a runner whose checks are real: a busy machine may take longer for one than any timeout that
// checks have.
func startWatched(t *testing.T, cfg checks.Config) watched {
	t.Helper()
	group := cfg.Alloc.GetTaskGroup()
	for _, s := range slices.Concat(group.Services, group.Tasks[0].Services) {
		for i := range s.Checks {
			if s.Checks[i].Timeout == time.Second {
				s.Checks[i].Timeout = time.Minute
			}
		}
	}
	changed := make(chan struct{}, 1)
	cfg.OnChange = func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	return watched{start(t, cfg), changed}
}

// await waits for the check's first run, which is at once.
func (w watched) await(t *testing.T, name string) api.AllocCheckStatus {
	t.Helper()
	for {
		if s := byName(w.Runner)[name]; s.Status != "pending" && s.Status != "" {
			return s
		}
		select {
		case <-w.changed:
		case <-time.After(polltest.Deadline()): // beyond every check's timeout
			t.Fatalf("check %q never ran", name)
		}
	}
}

func portOf(t *testing.T, address string) int {
	t.Helper()
	_, text, err := net.SplitHostPort(address)
	must.OK(t, err)
	return must.Get(strconv.Atoi(text))(t)
}

// newServer has a wait group of the connections that are open.
func newServer(t *testing.T, h http.Handler) (*httptest.Server, *sync.WaitGroup) {
	t.Helper()
	open := new(sync.WaitGroup)
	s := httptest.NewUnstartedServer(h)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s, open
}

func handler() http.Handler {
	mux := http.NewServeMux()
	answer := func(pattern string, code int, body string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			io.WriteString(w, body)
		})
	}
	answer("/ok", 200, "not shown")
	answer("/created", 201, "made")
	answer("/nothing", 204, "")
	answer("/notmodified", 304, "")
	answer("/missing", 404, "no such page")
	answer("/broken", 500, strings.Repeat("é", 4000))
	answer("/binary", 503, "a\xff\x00b")
	mux.Handle("/once", http.RedirectHandler("/created", http.StatusFound))
	mux.HandleFunc("/hops/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.PathValue("n"))
		if n == 0 {
			return
		}
		http.Redirect(w, r, fmt.Sprintf("/hops/%d", n-1), http.StatusFound)
	})
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		for r.Context().Err() == nil {
			io.WriteString(w, strings.Repeat("x", 1024))
		}
	})
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(http.StatusBadGateway)
		io.WriteString(w, "half")
	})
	return mux
}

func TestHTTP(t *testing.T) {
	server, open := newServer(t, handler())
	port := portOf(t, server.Listener.Addr().String())
	cases := map[string]struct {
		status string
		code   int
		output string
	}{
		"/ok":          {"success", 200, "nomad: http ok"},
		"/created":     {"success", 201, "made"},
		"/nothing":     {"success", 204, ""},
		"/notmodified": {"success", 304, ""},
		"/missing":     {"failure", 404, "no such page"},
		"/missing?x=1": {"failure", 404, "no such page"},
		"/broken":      {"failure", 500, strings.Repeat("é", 1536)},
		"/binary":      {"failure", 503, "a\x00b"},
		"/once":        {"success", 201, "made"},
		"/hops/10":     {"failure", 0, `nomad: Get "/hops/0": stopped after 10 redirects`},
		"/hops/9":      {"success", 200, "nomad: http ok"},
		"/endless":     {"failure", 418, strings.Repeat("x", 3072)},
		"/cut":         {"failure", 502, "half"},
		"ok":           {"success", 200, "nomad: http ok"},
		"header":       {"failure", 0, `nomad: Get "URLheader": net/http: invalid header field name "a b"`},
	}
	var list []api.ServiceCheck
	for path := range cases {
		check := httpCheck(path, path)
		if path == "header" {
			check.Header = map[string][]string{"a b": {"x"}}
		}
		list = append(list, check)
	}
	cfg := newConfig(newAlloc(list...))
	cfg.Ports = onPort(port)
	r := startWatched(t, cfg)
	for path, want := range cases {
		got := r.await(t, path)
		want.output = strings.Replace(want.output, "URL", server.URL+"/", 1)
		if got.Status != want.status || got.StatusCode != want.code || got.Output != want.output {
			t.Errorf("%s: %s %d %q, want %s %d %q", path, got.Status, got.StatusCode, got.Output, want.status, want.code,
				want.output)
		}
	}
	r.Stop()
	open.Wait() // would not return if the checks kept a connection
}

// TestRedirectElsewhere: a service can't have the check ask another host, port or scheme. Its redirect is the answer.
func TestRedirectElsewhere(t *testing.T) {
	other, _ := newServer(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another server is asked: %s", r.URL)
	}))
	var to []string
	server, _ := newServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i, _ := strconv.Atoi(strings.Trim(r.URL.Path, "/"))
		w.Header().Set("Location", to[i])
		w.WriteHeader(http.StatusFound)
		io.WriteString(w, "elsewhere")
	}))
	own := server.Listener.Addr().String()
	to = []string{other.URL, "//" + other.Listener.Addr().String() + "/", "https://" + own + "/",
		"http://localhost:" + strconv.Itoa(portOf(t, own)) + "/"}
	var list []api.ServiceCheck
	for i := range to {
		list = append(list, httpCheck(to[i], "/"+strconv.Itoa(i)))
	}
	cfg := newConfig(newAlloc(list...))
	cfg.Ports = onPort(portOf(t, own))
	r := startWatched(t, cfg)
	for _, name := range to {
		if got := r.await(t, name); got.Status != "success" || got.StatusCode != 302 || got.Output != "elsewhere" {
			t.Errorf("to %s: %s %d %q", name, got.Status, got.StatusCode, got.Output)
		}
	}
}

func TestHTTPRequest(t *testing.T) {
	type request struct {
		Method, URL, Host, Body string
		Header                  http.Header
	}
	got := make(chan request, 2)
	server, _ := newServer(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- request{r.Method, r.RequestURI, r.Host, string(body), r.Header}
	}))
	port := portOf(t, server.Listener.Addr().String())
	full := httpCheck("full", "/${v}?q=${v}")
	full.Method, full.Body = "PU${t}", "body ${v}"
	full.Header = map[string][]string{"X-${v}": {"1", "${v}"}, "Host": {"example.com"}, "user-agent": {"mine"}}
	for name, c := range map[string]struct {
		check api.ServiceCheck
		want  request
	}{
		"default": {httpCheck("plain", "/"), request{"GET", "/", server.Listener.Addr().String(), "", http.Header{
			"User-Agent": {"taskapi/1.2.3"}, "Accept-Encoding": {"gzip"}, "Connection": {"close"}}}},
		"all": {full, request{"PUT", "/val?q=val", "example.com", "body val", http.Header{
			"User-Agent": {"mine"}, "X-Val": {"1",
				"val"}, "Accept-Encoding": {"gzip"}, "Connection": {"close"}, "Content-Length": {"8"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := newConfig(newAlloc(c.check))
			cfg.Ports = onPort(port)
			cfg.Replace = func(task, s string) string { return strings.NewReplacer("${v}", "val", "${t}", "T").Replace(s) }
			r := startWatched(t, cfg)
			same.As(t, c.want, <-got, "request")
			r.await(t, c.check.Name)
		})
	}
}

func TestTCPAndNobodyThere(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	addr := l.Addr().String()
	cfg := newConfig(newAlloc(tcpCheck("tcp")))
	cfg.Ports = onPort(portOf(t, addr))
	r := startWatched(t, cfg)
	if got := r.await(t, "tcp"); got.Status != "success" || got.Output != "nomad: tcp ok" || got.StatusCode != 0 {
		t.Errorf("with a listener: %+v", got)
	}
	conn := must.Get(l.Accept())(t)
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the check's connection is not closed: read %d, %v", n, err)
	}
	conn.Close()
	l.Close()

	cfg.Alloc = newAlloc(tcpCheck("tcp"), httpCheck("http", "/x?key=secret"))
	r = startWatched(t, cfg)
	refused := "dial tcp " + addr + ": connect: connection refused"
	if got := r.await(t, "tcp"); got.Status != "failure" || got.Output != refused {
		t.Errorf("tcp without a listener: %+v", got)
	}
	// Without the query, in which there may be a secret.
	want := fmt.Sprintf("nomad: Get %q: %s", (&url.URL{Scheme: "http", Host: addr, Path: "/x"}).String(), refused)
	if got := r.await(t, "http"); got.Status != "failure" || got.Output != want || got.StatusCode != 0 {
		t.Errorf("http without a listener: %+v", got)
	}
}

// A server that accepts and never answers costs a timeout and no more.
func TestSilentServer(t *testing.T) {
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	check := httpCheck("http", "/")
	check.Timeout = 50 * time.Millisecond
	cfg := newConfig(newAlloc(check))
	cfg.Ports = onPort(portOf(t, l.Addr().String()))
	r := startWatched(t, cfg)
	if got := r.await(t, "http"); got.Status != "failure" || !strings.Contains(got.Output, "deadline exceeded") {
		t.Errorf("got %+v", got)
	}
}
