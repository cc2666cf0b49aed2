package handlers_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/handlers/internal/route"
)

// methods are all of RFC 9110 and RFC 5789, one of HTTP/2's preface and one that nobody knows.
var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
	http.MethodConnect, http.MethodOptions, http.MethodTrace, "PRI", "BREW",
}

// target returns a path of the route for the allocation.
func target(entry route.Route, alloc string) string {
	path := strings.NewReplacer("{alloc}", alloc, "{job}", "demo", "{eval}", anyEval, "{node}", anyNode, "{namespace}",
		"default", "{deployment}", otherID, "{pool}", "default", "{name}", "x", "{id}", "x", "*", "x/y").
		Replace(entry.Pattern)
	if entry.Pattern == "/v1/var/*" { // one that a task may read
		return "/v1/var/nomad/jobs/demo"
	}
	if strings.HasPrefix(path, "/v1/client/fs/") {
		path += "?path=alloc/data/file&offset=0&task=server&type=stdout"
	}
	return path
}

// anyEval is the evaluation that placed the allocation of newAlloc.
const anyEval = "b48a1a9d-a087-44dd-2232-c5215dfebbcb"

// anyNode is the node of newServer.
const anyNode = otherID

// quietAlloc answers every call.
func quietAlloc(tb testing.TB) *fakeAlloc {
	alloc := newAlloc(tb)
	alloc.restartRunning = func(context.Context) error { return nil }
	alloc.signal = func(context.Context, string, string) error { return nil }
	alloc.stop = func(context.Context, bool) error { return nil }
	alloc.collect = func(context.Context) error { return nil }
	alloc.files = func(*interfaces.Reader) interfaces.Files {
		return &fakeFiles{frames: func() interfaces.Frames { return newFakeFrames() }}
	}
	alloc.raw = func(_ context.Context, w io.Writer) { _, _ = w.Write([]byte("raw")) }
	alloc.upgrade = func(_ context.Context, w http.ResponseWriter, _ *http.Request) error {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
		}
		return err
	}
	return alloc
}

// success returns the status of a route that does what it is for.
func success(entry route.Route) int {
	switch {
	case strings.HasSuffix(entry.Pattern, "/exec"): // takes a command and a handshake: see exec_test.go
		return http.StatusBadRequest
	case strings.HasSuffix(entry.Pattern, "/action"):
		return http.StatusNotFound
	case strings.HasSuffix(entry.Pattern, "/scale") && entry.Methods[0] == http.MethodPut: // the agent's alone
		return http.StatusNotImplemented
	case strings.HasPrefix(entry.Doc, "Answers 404"),
		entry.Pattern == "/v1/acl/token/{name}" && entry.Answer == route.JSON:
		return http.StatusNotFound
	case entry.Pattern == "/v1/operator/license" && entry.Answer == route.JSON:
		return http.StatusNoContent
	}
	if entry.Pattern == "/v1/var/*" && entry.Methods[0] == http.MethodDelete {
		return http.StatusNoContent
	}
	switch entry.Answer {
	case route.Upgrade:
		return http.StatusSwitchingProtocols
	case route.Absent:
		return http.StatusNotImplemented
	}
	// There are none.
	if strings.HasSuffix(entry.Pattern, "{deployment}") && entry.Pattern != "/v1/deployment/allocations/{deployment}" {
		return http.StatusNotFound
	}
	return http.StatusOK
}

// routeOf returns the entry that a request is for, if there is one, and all methods that the path takes.
func routeOf(method, path string) (found *route.Route, allow []string) {
	path, _, _ = strings.Cut(path, "?")
	for _, entry := range handlers.AllRoutes() { // one without parameters comes before one with them
		if !formOf(entry.Pattern).MatchString(path) {
			continue
		}
		allow = append(allow, entry.Methods...)
		if slices.Contains(entry.Methods, method) &&
			(found == nil || strings.Count(found.Pattern, "{") > strings.Count(entry.Pattern, "{")) {
			found = &entry
		}
	}
	return found, allow
}

// forms are the expressions of formOf, by pattern.
var forms sync.Map

// formOf returns the expression of the paths that a pattern is for.
func formOf(pattern string) *regexp.Regexp {
	if form, ok := forms.Load(pattern); ok {
		return form.(*regexp.Regexp)
	}
	form := regexp.MustCompile("^" + strings.ReplaceAll(parameter.ReplaceAllString(pattern, "[^/]+"), "*", ".*") + "$")
	forms.Store(pattern, form)
	return form
}

// parameter is what of a pattern stands for anything.
var parameter = regexp.MustCompile(`[{][a-z]+[}]`)

// anyBody is good for every route.
const anyBody = `{"Signal":"SIGHUP","Job":{"ID":"demo"},"Jobs":[{"ID":"demo","Namespace":"default"}],` +
	`"Text":"demo","JobHCL":"job","Meta":{"a":"b"},"JobVersion":1,` +
	`"Task":"server","ScheduleState":"pause","Items":{"k":"v"}}`

// TestEveryRoute walks the table with every method: what it answers to the operator follows from the route alone.
func TestEveryRoute(t *testing.T) {
	s := newServer(t, quietAlloc(t), everyRoute)
	for _, entry := range handlers.AllRoutes() {
		if entry.AnyOf == 0 || entry.Doc == "" || entry.Answer == "" {
			t.Errorf("%s needs no capability, or is not described", entry.Pattern)
		}
		for _, method := range methods {
			if method == http.MethodConnect { // its target is no path: see TestBeforeRouting
				continue
			}
			path := target(entry, allocID)
			got := s.once(t, method, head(method, path, operator, anyBody))
			want := http.StatusMethodNotAllowed
			expected, allow := routeOf(method, path)
			if expected != nil {
				want = success(*expected)
			}
			if got.Status != want {
				t.Errorf("%s %s = %d %q, want %d", method, entry.Pattern, got.Status, got.Body, want)
			}
			if got := got.Header.Get("Allow"); want == http.StatusMethodNotAllowed && !strings.Contains(got, allow[0]) {
				t.Errorf("%s %s: Allow = %q, want %v in it", method, entry.Pattern, got, allow)
			}
		}
	}
}

// TestRoutesAreOnce: no two rows take the same method on the same path.
func TestRoutesAreOnce(t *testing.T) {
	rows := map[string]bool{}
	for _, entry := range handlers.AllRoutes() {
		for _, method := range entry.Methods {
			row := method + " " + parameter.ReplaceAllString(entry.Pattern, "{}")
			if rows[row] {
				t.Errorf("%s is in the table twice", row)
			}
			rows[row] = true
		}
	}
}

// head returns a request as text.
func head(method, target, token, body string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s HTTP/1.1\r\nHost: local\r\n", method, target)
	if token != "" {
		fmt.Fprintf(&text, "X-Nomad-Token: %s\r\n", token)
	}
	fmt.Fprintf(&text, "Content-Length: %d\r\n\r\n%s", len(body), body)
	return text.String()
}

// TestRoutesNeedACapability: a route that forgets it can't be made.
func TestRoutesNeedACapability(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a route without a capability was made")
		}
	}()
	handlers.NewRoute(auth.Authenticated)
	handlers.NewRoute(0)
}

// TestBeforeRouting: whatever the path and the method, the authenticator comes first, and then the same 404.
func TestBeforeRouting(t *testing.T) {
	s := newServer(t, newAlloc(t))
	targets := []string{
		"/", "/v1", "/v1/", "/v1/nothing", "//v1//allocations", "/v1/../etc", "/v1/allocation/", "/v1/allocation/%00/x",
		"/v1/%61llocations/", "/v1/allocations/", "/%2e%2e/%2f",
	}
	for _, method := range methods {
		for _, path := range append(targets, "*") {
			if (path == "*") != (method == http.MethodOptions && path == "*") {
				continue // only OPTIONS has a target of *
			}
			if method == http.MethodConnect {
				path = "local:80"
			}
			for token, want := range map[string]int{
				"": http.StatusUnauthorized, "garbage": http.StatusForbidden, goodToken: http.StatusNotFound,
			} {
				got := s.once(t, method, head(method, path, token, ""))
				if got.Status != want {
					t.Errorf("%s %s with token %q = %d, want %d", method, path, token, got.Status, want)
				}
				if token == goodToken && method != http.MethodHead && got.Body != "resource not found" {
					t.Errorf("%s %s = %q, want resource not found", method, path, got.Body)
				}
			}
		}
	}
}

// TestAudit: what changes something is recorded, done or not, and so is a want of capability; reads are not, and
// refusals of the authenticator are for it to record.
func TestAudit(t *testing.T) {
	s := newServer(t, quietAlloc(t))
	s.do(t, http.MethodGet, "/v1/allocations", goodToken, "")
	s.do(t, http.MethodGet, "/v1/allocations", "", "")
	s.do(t, http.MethodGet, "/v1/nothing", goodToken, "")
	s.do(t, http.MethodGet, "/v1/allocations", poorToken, "")
	s.do(t, http.MethodPut, restartPath, poorToken, "")
	s.do(t, http.MethodPut, restartPath, goodToken, "")
	s.do(t, http.MethodPut, restartPath, goodToken, "{")
	s.stop()

	got := s.audited()
	record := func(method, path string, outcome auth.Outcome, status int, reason string) auth.Record {
		return auth.Record{
			Alloc: allocID, Task: "server", Subject: "global:default:demo:web:server:default", TokenID: "jti-1", UID: peer.UID,
			PID:    peer.PID,
			Method: method, Path: path, Outcome: outcome, Status: status, Reason: reason,
		}
	}
	lacking := func(method, path, capability string) auth.Record {
		r := record(method, path, auth.Denied, 403, auth.MissingCapability.String())
		r.Capability = capability
		return r
	}
	want := []auth.Record{
		lacking("GET", "/v1/allocations", "read-job"),
		lacking("PUT", restartPath, "alloc-lifecycle"),
		record("PUT", restartPath, auth.Done, 200, ""),
		record("PUT", restartPath, auth.Failed, 400, ""),
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(auth.Record{}, "Time")); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestNoChangeWithoutARecord: what can't be recorded is not done, but for the operator's stop; what changes nothing is.
func TestNoChangeWithoutARecord(t *testing.T) {
	alloc, restarted, stopped := quietAlloc(t), 0, 0
	alloc.restartRunning = func(context.Context) error { restarted++; return nil }
	alloc.stop = func(context.Context, bool) error { stopped++; return nil }
	s := newServer(t, alloc, everyRoute)
	s.full = true
	const stopPath = "/v1/allocation/" + allocID + "/stop"
	for _, test := range []struct {
		method, path, token string
		status              int
	}{
		{http.MethodPut, restartPath, goodToken, 503},
		{http.MethodPut, restartPath, operator, 503},
		{http.MethodPut, stopPath, goodToken, 503},
		{http.MethodGet, execPath + execQuery(), execToken, 503}, // nothing may be run
		{http.MethodGet, execPath + execQuery(), operator, 503},
		{http.MethodGet, "/v1/job/demo/action?action=x&task=server", operator, 503},
		{http.MethodPut, "/v1/var/x/y", operator, 503},
		{http.MethodGet, "/v1/allocations", goodToken, 200},
		{http.MethodPut, restartPath, poorToken, 403},
		{http.MethodPut, stopPath, operator, 200},
	} {
		got := s.do(t, test.method, test.path, test.token, "")
		if got.Status != test.status || got.Status == 503 && got.Body != auth.ErrAudit.Error() {
			t.Errorf("%s %s as %s = %d %q, want %d", test.method, test.path, test.token, got.Status, got.Body, test.status)
		}
	}
	s.stop()
	if restarted != 0 || stopped != 1 {
		t.Errorf("%d restarts and %d stops were carried out, want the operator's stop alone", restarted, stopped)
	}
}
