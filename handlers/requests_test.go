package handlers_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/handlers/apierror"
	"taskapi/internal/must"
)

const (
	restartPath = "/v1/client/allocation/" + allocID + "/restart"
	signalPath  = "/v1/client/allocation/" + allocID + "/signal"
	checksPath  = "/v1/client/allocation/" + allocID + "/checks"
	stopPath    = "/v1/allocation/" + allocID + "/stop"
	streamPath  = "/v1/event/stream"
)

// TestBadInput: what is wrong is said, and what would be right.
func TestBadInput(t *testing.T) {
	s := newServer(t, newAlloc(t))
	long := strings.Repeat("x", 70)
	for _, c := range []struct {
		method, target, body string
		status               int
		want                 string
	}{
		{"GET", "/v1/allocations?index=x", "", 400, `index must be a whole number, as X-Nomad-Index gave it, not "x"`},
		{"GET", "/v1/allocations?index=-1", "", 400, `index must be a whole number, as X-Nomad-Index gave it, not "-1"`},
		{"GET", "/v1/allocation/" + allocID + "?wait=soon", "", 400, `wait must be a duration such as 10s or 5m, not "soon"`},
		{"GET", "/v1/allocations?wait=-1s", "", 400, `wait must be a duration such as 10s or 5m, not "-1s"`},
		{"GET", "/v1/allocations?resources=maybe", "", 400, `resources must be true or false, not "maybe"`},
		{"GET", "/v1/allocations?task_states=2", "", 400, `task_states must be true or false, not "2"`},
		{"GET", "/v1/allocations?prefix=zz", "", 400,
			`prefix must be the beginning of a UUID, at most 36 hexadecimal digits and hyphens, not "zz"`},
		{"GET", "/v1/allocations?a=%zz", "", 400, `the query string can't be read: invalid URL escape "%zz"`},
		{"GET", "/v1/agent/health?type=x", "", 400, `type must be client or server, not "x"`},
		{"GET", "/v1/allocation/" + long, "", 400, `allocation ID "` + long[:64] +
			`"... must be a UUID of 36 characters, not 70`},
		{"GET", "/v1/client/allocation//checks", "", 400, `allocation ID "" must be a UUID of 36 characters, not 0`},
		{"GET", "/v1/allocation/a%2Fb", "", 400, `allocation ID "a/b" must be a UUID of 36 characters, not 3`},
		{"GET", "/v1/allocation/a%20b", "", 400, `allocation ID "a b" must be a UUID of 36 characters, not 3`},
		{"GET", "/v1/allocation/a%2520b", "", 400, `allocation ID "a%20b" must be a UUID of 36 characters, not 5`},
		{"GET", restartPath, "", 405, "Invalid method"},
		{"PUT", restartPath, `{"TaskName":"a","AllTasks":true}`, 400, "task name cannot be set when restarting all tasks"},
		{"PUT", restartPath, "{", 400, "Failed to decode body: unexpected EOF"},
		{"PUT", restartPath, "TaskName=a", 400,
			"Failed to decode body: invalid character 'T' looking for beginning of value"},
		{"PUT", restartPath, "{} x", 400, "Failed to decode body: there is more after the JSON value"},
		{"PUT", restartPath, "{}{}", 400, "Failed to decode body: there is more after the JSON value"},
		{"PUT", restartPath, "{}]", 400, "Failed to decode body: there is more after the JSON value"},
		{"PUT", signalPath, "", 400, "Failed to decode body: EOF"},
		{"PUT", restartPath, `{"TaskName":7}`, 400, `Failed to decode body: "TaskName" is a number: give a string`},
		{"PUT", restartPath, `{"AllTasks":"x"}`, 400, `Failed to decode body: "AllTasks" is a string: give a boolean`},
		{"PUT", restartPath, `[]`, 400,
			"Failed to decode body: an array is no object: give {}, or with the fields of the request"},
		{"POST", signalPath, "{}" + strings.Repeat(" ", 64<<10), 413, "the body is larger than 65536 bytes"},
		{"POST", signalPath, `{"Task":"` + strings.Repeat("a", 64<<10) + `"}`, 413, "the body is larger than 65536 bytes"},
	} {
		got := s.do(t, c.method, c.target, goodToken, c.body)
		if got.Status != c.status || got.Body != c.want {
			t.Errorf("%s %s %.40q = %d %q, want %d %q", c.method, c.target, c.body, got.Status, got.Body, c.status, c.want)
		}
		if got, want := got.Header.Get("Content-Type"), "text/plain; charset=utf-8"; got != want {
			t.Errorf("%s %s: content type %q, want %q", c.method, c.target, got, want)
		}
	}
}

// TestPathOfOddCharacters: a path with a character that no URL has is routed as it is recorded and passed on, with each
// part escaped in the usual way.
func TestPathOfOddCharacters(t *testing.T) {
	s := newServer(t, newAlloc(t))
	for path, want := range map[string]int{
		"/v1/allocation/a%2Fb": http.StatusBadRequest, `/v1/allocation/a%2Fb"`: http.StatusNotFound,
		`/v1/allocation/a"`: http.StatusBadRequest,
	} {
		if got := s.once(t, "GET", head("GET", path, goodToken, "")); got.Status != want {
			t.Errorf("%s = %d %q, want %d", path, got.Status, got.Body, want)
		}
	}
}

// TestKinds: each kind of error has its status, an error without a kind says nothing to the client and all to the log,
// once.
func TestKinds(t *testing.T) {
	alloc := newAlloc(t)
	var fault error
	alloc.restartRunning = func(context.Context) error { return fault }
	s := newServer(t, alloc)
	for _, c := range []struct {
		err    error
		status int
		body   string
	}{
		{runnerError(apierror.Invalid, "m"), 400, "m"},
		{runnerError(apierror.PathEscapes), 403, "Path escapes the alloc directory"},
		{runnerError(apierror.NoTask), 404, "Task not found"},
		{runnerError(apierror.Conflict, "m"), 409, "m"},
		{runnerError(apierror.Internal), 500, "internal error"},
		{runnerError(apierror.Unavailable, "m"), 503, "m"},
		{runnerError(apierror.Kind{}), 500, "internal error"},
		{errors.New("open /etc/shadow"), 500, "internal error"},
		{context.Canceled, 500, "internal error"}, // not the client's: the client is there
	} {
		fault = c.err
		if got := s.do(t, "PUT", restartPath, goodToken, ""); got.Status != c.status || got.Body != c.body {
			t.Errorf("%v = %d %q, want %d %q", c.err, got.Status, got.Body, c.status, c.body)
		}
	}
	if got := strings.Count(s.log.String(), "open /etc/shadow"); got != 1 {
		t.Errorf("the fault is in the log %d times, want once:\n%s", got, s.log)
	}
}

// TestPanic: a panic is a 500 and a line in the log, on a connection that goes on; also in the authenticator.
func TestPanic(t *testing.T) {
	alloc := newAlloc(t)
	alloc.restartRunning = func(context.Context) error { panic("out of cheese") }
	s := newServer(t, alloc)
	c := s.dial(t)
	for token, words := range map[string]string{goodToken: "out of cheese", boom: "the authenticator fell in"} {
		got := c.send(t, "PUT", head("PUT", restartPath, token, ""))
		if got.Status != 500 || got.Body != "internal error" {
			t.Errorf("a panic = %d %q, want a bare 500", got.Status, got.Body)
		}
		if strings.Count(s.log.String(), words) != 1 {
			t.Errorf("the log has not %q once:\n%s", words, s.log)
		}
	}
	if got := c.send(t, "GET", head("GET", checksPath, goodToken, "")); got.Status != 200 {
		t.Errorf("after the panics = %d, want 200 on the same connection", got.Status)
	}
}

// TestPretty: any value but 0 and false indents.
func TestPretty(t *testing.T) {
	s := newServer(t, newAlloc(t))
	for target, want := range map[string]string{
		leaderPath:                     `"127.0.0.1:4647"`,
		"/v1/agent/health?type=client": `{"client":{"ok":true,"message":"ok"}}`,
		"/v1/agent/health?type=client&pretty": "{\n    \"client\": {\n        \"ok\": true,\n        \"message\": " +
			"\"ok\"\n    }\n}",
		"/v1/agent/health?pretty=1&type=server": "{\n    \"server\": {\n        \"ok\": true,\n        \"message\": " +
			"\"ok\"\n    }\n}",
		"/v1/agent/health?pretty=0&type=client":     `{"client":{"ok":true,"message":"ok"}}`,
		"/v1/agent/health?pretty=false&type=client": `{"client":{"ok":true,"message":"ok"}}`,
	} {
		if got := s.do(t, "GET", target, poorToken, ""); got.Body != want {
			t.Errorf("%s = %q, want %q", target, got.Body, want)
		}
	}
}

const leaderPath = "/v1/status/leader"

// TestOneConnection: whatever the answer, the connection goes on, and nothing of a request's route is left for the next
// request. The head of HEAD is that of GET, where GET changes nothing.
func TestOneConnection(t *testing.T) {
	s := newServer(t, quietAlloc(t))
	c := s.dial(t)
	var length string
	for _, step := range []struct {
		method, path, token, body string
		status                    int
		allow                     string
	}{
		{"GET", checksPath, goodToken, "", 200, ""},
		{"DELETE", checksPath, goodToken, "a body that nobody reads", 405, "GET, HEAD"},
		{"GET", "/v1/nothing", goodToken, "", 404, ""},
		{"HEAD", checksPath, goodToken, "", 200, ""},
		{"GET", checksPath, "", "", 401, ""},
		{"GET", checksPath, "garbage", "another", 403, ""},
		{"POST", "/v1/job/a/b/allocations", goodToken, "", 405, "GET, HEAD"},
		{"GET", "/v1/job/demo/allocations", goodToken, "", 200, ""},
		{"HEAD", gcPath, goodToken, "", 405, "GET, PUT, POST"},
		{"HEAD", "/v1/client/gc", operator, "", 405, "GET, PUT, POST"},
		{"GET", checksPath, poorToken, "", 403, ""},
		{"PUT", "/v1/nothing", goodToken, anyBody, 404, ""},
		{"PUT", restartPath, goodToken, "{", 400, ""},
		{"PUT", restartPath, goodToken, "", 200, ""},
		{"OPTIONS", "*", goodToken, "", 404, ""},
		{"GET", checksPath, boom, "", 500, ""},
		{"PATCH", leaderPath, goodToken, "", 405, "GET, HEAD"},
		{"PATCH", "/v1/nothing", goodToken, "", 404, ""},
		{"GET", leaderPath, goodToken, "", 200, ""},
		{"GET", checksPath, goodToken, "", 200, ""},
	} {
		got := c.send(t, step.method, head(step.method, step.path, step.token, step.body))
		if got.Status != step.status || got.Header.Get("Allow") != step.allow || step.method == "HEAD" && got.Body != "" ||
			got.Header.Get("Connection") != "" {
			t.Errorf("%s %s = %d, Allow %q, Connection %q, body %q, want %d and %q", step.method, step.path, got.Status,
				got.Header.Get("Allow"), got.Header.Get("Connection"), got.Body, step.status, step.allow)
		}
		if now := got.Header.Get("Content-Length"); step.path == checksPath && step.status == 200 {
			if length != "" && now != length {
				t.Errorf("%s %s has the length %s, and GET had %s", step.method, step.path, now, length)
			}
			length = now
		}
	}
}

// TestCachesFollow: an encoding is kept for as long as nothing changed, and not a request longer.
func TestCachesFollow(t *testing.T) {
	alloc := newAlloc(t)
	current, version, keyID := alloc.snapshot(), uint64(7), "k1"
	alloc.snapshot = func() *api.Allocation { return current }
	status := "pending"
	alloc.checks = func() (api.AllocCheckStatuses, uint64) {
		return api.AllocCheckStatuses{"a": {ID: "a", Status: status}}, version
	}
	s := newServer(t, alloc, func(c *handlers.Config) { c.SigningKeyID = func() string { return keyID } })
	want := func(target, text string) {
		t.Helper()
		for range 2 {
			if got := s.do(t, "GET", target, goodToken, ""); !strings.Contains(got.Body, text) {
				t.Errorf("GET %s has not %q", target, text)
			}
		}
	}
	want(checksPath, `"Status":"pending"`)
	want("/v1/allocation/"+allocID, `"ClientStatus":"running"`)
	version, status = 8, "success"
	ended := *current
	ended.ModifyIndex, ended.ClientStatus = 35, "complete"
	current = &ended
	want(checksPath, `"Status":"success"`)
	want("/v1/allocation/"+allocID, `"ClientStatus":"complete"`)
	keyID = "k2"
	want("/v1/allocation/"+allocID, `"SigningKeyID":"k2"`)
	want("/v1/allocation/"+strings.ToUpper(allocID), `"SigningKeyID":"k2"`)
}

// TestFraming: what net/http lets a client say about the length of things ends in one clear answer.
func TestFraming(t *testing.T) {
	s := newServer(t, quietAlloc(t))
	line := "PUT " + restartPath + " HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: good\r\n"
	for name, c := range map[string]struct {
		request string
		status  int
	}{
		"two lengths":            {line + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400},
		"a length with a sign":   {line + "Content-Length: +2\r\n\r\n{}", 400},
		"transfer coding twice":  {line + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501},
		"chunked":                {line + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 200},
		"chunked, broken":        {line + "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", 400},
		"no host":                {"GET / HTTP/1.1\r\nX-Nomad-Token: good\r\n\r\n", 400},
		"a head that fits":       {line + "X: " + strings.Repeat("a", 7<<10) + "\r\nContent-Length: 0\r\n\r\n", 200},
		"a head that is too big": {line + "X: " + strings.Repeat("a", 13<<10) + "\r\nContent-Length: 0\r\n\r\n", 431},
		"a TLS greeting":         {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400},
	} {
		t.Run(name, func(t *testing.T) {
			if got := s.dial(t).send(t, "PUT", c.request); got.Status != c.status {
				t.Errorf("status = %d %q, want %d", got.Status, got.Body, c.status)
			}
		})
	}
}

// FuzzRequest: no target and no body is answered with a fault of ours.
func FuzzRequest(f *testing.F) {
	alloc := quietAlloc(f)
	alloc.restartTask = func(context.Context, string) error { return nil }
	alloc.restartAll = func(context.Context) error { return nil }
	alloc.wait = func(context.Context, uint64) *api.Allocation { return alloc.snapshot() }
	s := newServer(f, alloc, func(c *handlers.Config) { c.Jobs, c.Events = quietJobs(), nil }) // a stream does not end
	f.Add("GET", checksPath, "")
	f.Add("PUT", signalPath, anyBody)
	f.Add("PUT", restartPath, `{"TaskName":"a","AllTasks":true} x`)
	f.Add("GET", "/v1/allocations?index=34&wait=1s&prefix=c0&resources&pretty", "")
	f.Add("GET", "/v1/allocation/a%2F%00b?pretty=%zz", "")
	f.Add("PUT", stopPath+"?no_shutdown_delay=0", "")
	f.Add("POST", "/v1/jobs?force=false", anyBody)
	f.Add("PUT", "/v1/job/demo/plan", `{"Job":{"ID":"demo","TaskGroups":[null,{"Tasks":[null]}]},"Diff":true}`)
	f.Add("GET", "/v1/jobs?prefix=d&meta&namespace=*", "")
	f.Add("OPTIONS", "*", "")
	f.Fuzz(func(t *testing.T, method, target, body string) {
		u, err := url.ParseRequestURI(target) // as net/http reads a request line
		if err != nil {
			return
		}
		if u.Path == upgradePath || strings.Trim(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
			return
		}
		answer := s.once(t, method, head(method, target, operator, body))
		if answer.Status >= 500 || answer.Body == "" && method != http.MethodHead {
			t.Errorf("%q %q %q = %d %q", method, target, body, answer.Status, answer.Body)
		}
	})
}

// TestUnknownPeer: without the kernel's word on the other end nothing is answered.
func TestUnknownPeer(t *testing.T) {
	s := newServer(t, newAlloc(t), func(c *handlers.Config) {
		c.PeerOf = func(net.Conn) (auth.Peer, error) { return auth.Peer{}, errors.New("no peer credentials") }
	})
	c := s.dial(t)
	_, _ = io.WriteString(c.Conn, head("GET", checksPath, goodToken, "")) // it may be closed already
	if text, err := io.ReadAll(c); len(text) != 0 {
		t.Errorf("answered %q (%v), want nothing", text, err)
	}
}

// TestClientGoesAway: a blocking query ends with its client, and nobody hears of it.
func TestClientGoesAway(t *testing.T) {
	alloc := newAlloc(t)
	waiting, gone := make(chan struct{}), make(chan error, 1)
	alloc.wait = func(ctx context.Context, _ uint64) *api.Allocation {
		close(waiting)
		<-ctx.Done()
		gone <- ctx.Err()
		return alloc.snapshot()
	}
	s := newServer(t, alloc)
	c := s.dial(t)
	must.Get(io.WriteString(c.Conn, head("GET", "/v1/allocations?index=34", goodToken, "")))(t)
	<-waiting
	_ = c.Close()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the wait ended with %v, want it cancelled", err)
	}
}

// TestDrain: when the server stops, blocking queries are answered at once and actions under way come to their end.
func TestDrain(t *testing.T) {
	alloc := newAlloc(t)
	started, finish := make(chan struct{}, 2), make(chan struct{})
	alloc.wait = func(ctx context.Context, _ uint64) *api.Allocation {
		started <- struct{}{}
		<-ctx.Done()
		close(finish) // the server drains now, so let the restart end
		return alloc.snapshot()
	}
	alloc.restartRunning = func(context.Context) error {
		started <- struct{}{}
		<-finish
		return nil
	}
	s := newServer(t, alloc)
	query, action := s.dial(t), s.dial(t)
	for c, text := range map[*conn]string{
		&query:  head("GET", "/v1/allocations?index=34", goodToken, ""),
		&action: head("PUT", restartPath, goodToken, ""),
	} {
		must.Get(io.WriteString(c.Conn, text))(t)
		<-started
	}
	s.stop()
	for _, c := range []conn{query, action} {
		response := must.Get(http.ReadResponse(c.Reader, nil))(t)
		if got := readReply(t, response); got.Status != 200 {
			t.Errorf("answer of a draining server = %d %q, want 200", got.Status, got.Body)
		}
	}
}

// TestListenerFails: Serve says so and leaves nothing behind.
func TestListenerFails(t *testing.T) {
	a := handlers.New(handlers.Config{Server: handlers.Server{
		Authenticator: fakeAuthenticator{}, Allocs: allocs{newAlloc(t)}, Logger: discard(),
		PeerOf: func(net.Conn) (auth.Peer, error) { return peer, nil },
	}})
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	_ = listener.Close()
	err := a.Serve(t.Context(), listener, auth.Owner{AllocationID: allocID})
	if !errors.Is(err, net.ErrClosed) || !strings.Contains(err.Error(), listener.Addr().String()) {
		t.Errorf("Serve = %v, want the closed listener with its address", err)
	}
}

// TestNewNeedsItsFields: what is required is checked once.
func TestNewNeedsItsFields(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("New made an API of nothing")
		}
	}()
	handlers.New(handlers.Config{})
}

// TestRefusal: it is a whole response.
func TestRefusal(t *testing.T) {
	response := must.Get(http.ReadResponse(bufio.NewReader(strings.NewReader(handlers.Refusal)), nil))(t)
	got := readReply(t, response)
	if got.Status != 503 || got.Body != "too many connections" || !response.Close || got.Header.Get("Retry-After") != "1" {
		t.Errorf("refusal = %+v, close %v", got, response.Close)
	}
}
