package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/internal/must"
)

const allocID = "5e0b1c1a-0000-4000-8000-000000000001"

// A fakeServer is an allocation and its server, as far as the watcher can see them. Every request must carry the token
// that is in the file at that time, and each answer renews it.
type fakeServer struct {
	mu        sync.Mutex
	tokenFile string
	token     string
	renewals  int
	refused   int
	polls     int // for the checks
	page      page
	restarts  uint64
	signals   []string
}

func (w *fakeServer) renew() {
	w.renewals++
	w.token = fmt.Sprintf("token-%d", w.renewals)
	if err := os.WriteFile(w.tokenFile, []byte(w.token+"\n"), 0o600); err != nil {
		panic(err)
	}
}

func (w *fakeServer) api() http.Handler {
	mux := http.NewServeMux()
	answer := func(pattern string, give func(*http.Request) any) {
		mux.HandleFunc(pattern, func(rw http.ResponseWriter, r *http.Request) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if r.Header.Get("X-Nomad-Token") != w.token {
				w.refused++
				http.Error(rw, "Forbidden", http.StatusForbidden)
				return
			}
			w.renew()
			_ = json.NewEncoder(rw).Encode(give(r))
		})
	}
	answer("GET /v1/allocation/"+allocID, func(*http.Request) any {
		return api.Allocation{ID: allocID, Name: "demo.web[0]", TaskStates: map[string]*api.TaskState{
			"init": {State: "dead"},
			"server": {State: "running", Restarts: w.restarts,
				Events: []*api.TaskEvent{{Type: "Started"}, {Type: "Restart Signaled"}}},
		}}
	})
	answer("GET /v1/client/allocation/"+allocID+"/checks", func(*http.Request) any {
		w.polls++
		status := "pending"
		if w.polls > 2 {
			status = "success"
		}
		return api.AllocCheckStatuses{"1": {Check: "alive", Service: "demo-web", Status: status, Output: "nomad: http ok"}}
	})
	answer("PUT /v1/client/allocation/"+allocID+"/signal", func(r *http.Request) any {
		var body api.AllocSignalRequest
		_ = json.NewDecoder(r.Body).Decode(&body)
		w.signals = append(w.signals, body.Task+" "+body.Signal)
		w.page.Read++
		return map[string]int{"Index": 0}
	})
	answer("PUT /v1/client/allocation/"+allocID+"/restart", func(*http.Request) any {
		w.restarts++
		w.page.PID++
		return map[string]int{"Index": 0}
	})
	return mux
}

func TestTourSeesTheServerThroughTheAPIAndNeverUsesAnOldToken(t *testing.T) {
	dir := t.TempDir()
	w := &fakeServer{tokenFile: filepath.Join(dir, "token"), page: page{Greeting: "hello", Read: 1, PID: 100}}
	w.renew()

	listener, err := net.Listen("unix", filepath.Join(dir, "api.sock"))
	must.OK(t, err)
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: w.api()}}
	server.Start()
	defer server.Close()
	site := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		_ = json.NewEncoder(rw).Encode(w.page)
	}))
	defer site.Close()

	var out strings.Builder
	watcher, err := newWatcher(config{
		Address: "unix://" +
			listener.Addr().String(), TokenFile: w.tokenFile, AllocID: allocID, Task: "server", URL: site.URL, Out: &out,
	})
	must.OK(t, err)
	if err := watcher.tour(t.Context()); err != nil {
		t.Fatalf("%v\nit printed:\n%s", err, out.String())
	}
	if w.refused != 0 {
		t.Errorf("%d requests carried an old token", w.refused)
	}
	if got := strings.Join(w.signals, ", "); got != "server SIGHUP" {
		t.Errorf("signals sent: %q", got)
	}
	const want = `my allocation is 5e0b1c1a, demo.web[0]: init dead, server running
check "alive" of service "demo-web": success (nomad: http ok)
the server says "hello": greeting read 1 time(s) by process 100
sent SIGHUP to "server"
the server says "hello": greeting read 2 time(s) by process 100
restarted "server"
the server says "hello": greeting read 2 time(s) by process 101
events of "server": Started, Restart Signaled
my token was renewed meanwhile, and every request was let in
done
`
	if out.String() != want {
		t.Errorf("it printed\n%s\nwant\n%s", out.String(), want)
	}
}

func TestTourSaysWhatWentWrong(t *testing.T) {
	dir := t.TempDir()
	if _, err := newWatcher(config{}); err == nil || !strings.Contains(err.Error(), "NOMAD_UNIX_ADDR") {
		t.Errorf("without a socket: got error %v, want one that names NOMAD_UNIX_ADDR", err)
	}
	watcher, err := newWatcher(config{Address: "unix://" + filepath.Join(dir, "none.sock"),
		TokenFile: filepath.Join(dir, "none")})
	must.OK(t, err)
	if err := watcher.tour(t.Context()); err == nil || !strings.Contains(err.Error(), "read the token") {
		t.Errorf("without a token: got error %v, want one about the token", err)
	}
}
