package handlers_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gorilla/websocket"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/auth"
	"taskapi/handlers"
	"taskapi/handlers/internal/route"
	"taskapi/internal/must"
)

const execPath = "/v1/client/allocation/" + allocID + "/exec"

// fakeCommand is a command whose files are the test's.
type fakeCommand struct {
	stdin          *io.PipeReader
	stdout, stderr *io.PipeWriter
	result         chan commandEnd // one is for Wait
	sizes          chan [2]uint16
	ctx            context.Context
	request        interfaces.ExecRequest

	in        *io.PipeWriter
	out, errs *io.PipeReader
	close     sync.Once
	closed    chan struct{}
}

type commandEnd struct {
	code int
	err  error
}

func (c *fakeCommand) Stdin() io.WriteCloser { return c.in }
func (c *fakeCommand) Stdout() io.Reader     { return c.out }
func (c *fakeCommand) Stderr() io.Reader     { return c.errs }
func (c *fakeCommand) Resize(rows, columns uint16) error {
	c.sizes <- [2]uint16{rows, columns}
	return nil
}

func (c *fakeCommand) Wait() (interfaces.ExitResult, error) {
	end := <-c.result
	return interfaces.ExitResult{ExitCode: end.code}, end.err
}

// Close ends the command as a kill does.
func (c *fakeCommand) Close() error {
	c.close.Do(func() {
		c.stdin.Close()
		c.end(137, nil)
		close(c.closed)
	})
	return nil
}

// end ends the command.
func (c *fakeCommand) end(code int, err error) {
	select {
	case c.result <- commandEnd{code, err}:
	default: // it has ended
	}
	c.stdout.Close()
	c.stderr.Close()
}

// commands has an allocation hand each command that is run to the test.
func commands(alloc *fakeAlloc) <-chan *fakeCommand {
	started := make(chan *fakeCommand, 100)
	alloc.exec = func(ctx context.Context, req interfaces.ExecRequest) (interfaces.ExecSession, error) {
		c := &fakeCommand{result: make(chan commandEnd, 1), sizes: make(chan [2]uint16, 10), ctx: ctx, request: req,
			closed: make(chan struct{})}
		c.stdin, c.in = io.Pipe()
		c.out, c.stdout = io.Pipe()
		c.errs, c.stderr = io.Pipe()
		started <- c
		return c, nil
	}
	return started
}

// execQuery is the query for a command in the task server.
func execQuery(more ...string) string {
	query := url.Values{"task": {"server"}, "command": {`["sh","-c","x"]`}}
	for i := 0; i < len(more); i += 2 {
		query.Set(more[i], more[i+1])
	}
	return "?" + query.Encode()
}

// websocketTo opens a WebSocket; with a status other than 101 there is none.
func websocketTo(t *testing.T, s *server, target, token string) (*websocket.Conn, int, string) {
	t.Helper()
	dialer := websocket.Dialer{NetDialContext: func(context.Context, string, string) (net.Conn,
		error) {
		return net.Dial("unix", s.path)
	}}
	c, response, err := dialer.Dial("ws://local"+target, http.Header{"X-Nomad-Token": {token}})
	if response == nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(response.Body)
	if c != nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, response.StatusCode, string(body)
}

// closeOf reads up to the close frame.
func closeOf(t *testing.T, c *websocket.Conn) (code int, text string) {
	t.Helper()
	for {
		_, _, err := c.ReadMessage()
		if closed, ok := errors.AsType[*websocket.CloseError](err); ok {
			return closed.Code, closed.Text
		}
		must.OK(t, err)
	}
}

// TestExec carries input, output, sizes and the exit code, in the frames that the SDK has types for.
func TestExec(t *testing.T) {
	alloc := newAlloc(t)
	started := commands(alloc)
	s := newServer(t, alloc)
	c, status, body := websocketTo(t, s, execPath+execQuery("tty", "true", "term", "xterm-256color"), operator)
	if status != http.StatusSwitchingProtocols {
		t.Fatal(status, body)
	}
	command := <-started
	want := interfaces.ExecRequest{Task: "server", Command: []string{"sh", "-c", "x"}, TTY: true, Term: "xterm-256color"}
	if diff := cmp.Diff(want, command.request); diff != "" {
		t.Error(diff)
	}
	expect := func(want api.ExecStreamingOutput) {
		t.Helper()
		var got api.ExecStreamingOutput
		must.OK(t, c.ReadJSON(&got))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	go func() {
		_, _ = command.stdout.Write([]byte{0, 255, 'x'})
	}()
	expect(api.ExecStreamingOutput{Stdout: &api.ExecStreamingIOOperation{Data: []byte{0, 255, 'x'}}})
	for _, message := range []string{
		`{}`, `{"mood":"sunny"}`, `{"tty_size":{}}`, `{"tty_size":{"height":0,"width":7}}`, `{"stdin":{}}`,
		`{"stdin":{"data":""}}`,
		`{"tty_size":{"height":33,"width":65535}}`, `{"stdin":{"data":"AP94","close":true}}`, `{"stdin":{"close":true}}`,
		`{"stdin":{"data":"eA=="}}`,
	} {
		must.OK(t, c.WriteMessage(websocket.TextMessage, []byte(message)))
	}
	if got, err := io.ReadAll(command.stdin); string(got) != "\x00\xffx" || err != nil {
		t.Errorf("the input is %q, %v", got, err)
	}
	if got := <-command.sizes; got != [2]uint16{33, 65535} {
		t.Errorf("size %v", got)
	}
	command.stderr.Close()
	expect(api.ExecStreamingOutput{Stderr: &api.ExecStreamingIOOperation{Close: true}})
	command.end(7, nil)
	expect(api.ExecStreamingOutput{Stdout: &api.ExecStreamingIOOperation{Close: true}})
	expect(api.ExecStreamingOutput{Exited: true, Result: &api.ExecStreamingExitResult{ExitCode: 7}})
	if code, text := closeOf(t, c); code != websocket.CloseNormalClosure || text != "" {
		t.Errorf("closed with %d %q", code, text)
	}
	<-command.closed
}

// TestExecRefusals come before the upgrade, with a status.
func TestExecRefusals(t *testing.T) {
	alloc := newAlloc(t)
	alloc.exec = func(context.Context, interfaces.ExecRequest) (interfaces.ExecSession, error) {
		return nil, interfaces.ErrTaskNotRunning
	}
	s := newServer(t, alloc)
	long := strings.Repeat("x", 70)
	for name, tc := range map[string]struct {
		target, token string
		status        int
		body          string
	}{
		"not running":   {execPath + execQuery(), operator, 409, "Task not running"},
		"no capability": {execPath + execQuery(), goodToken, 403, "Permission denied"},
		"no token":      {execPath + execQuery(), "", 401, "Unauthorized"},
		"another's": {strings.Replace(execPath, allocID, otherID, 1) + execQuery(), operator, 404,
			`Unknown allocation "` + otherID + `"`},
		"no UUID":      {"/v1/client/allocation/x/exec" + execQuery(), operator, 400, "must be a UUID"},
		"unknown task": {execPath + execQuery("task", "x"), operator, 404, "Task not found"},
		"no task of two": {execPath + execQuery("task", ""), operator, 400,
			"must provide task name: the allocation has the tasks server, init"},
		"empty command": {execPath + execQuery("command", "[]"), operator, 400, "command is not present"},
		"no JSON":       {execPath + execQuery("command", "ls"), operator, 400, `command "ls" can't be read`},
		"no strings":    {execPath + execQuery("command", `["ls",1]`), operator, 400, "must be a JSON array of strings"},
		"tty":           {execPath + execQuery("tty", "maybe"), operator, 400, `tty must be true or false, not "maybe"`},
		"term":          {execPath + execQuery("term", long), operator, 400, "is no type of a terminal"},
		"handshake":     {execPath + execQuery("ws_handshake", "2"), operator, 400, "ws_handshake must be true or false"},
		"unknown action": {"/v1/job/demo/action?action=x", operator, 404,
			`action "x" not found in the allocation: it has none`},
		"another job":     {"/v1/job/x/action?action=x", operator, 404, "job not found"},
		"another's alloc": {"/v1/job/demo/action?action=x&allocID=" + otherID, operator, 404, "Unknown allocation"},
	} {
		t.Run(name, func(t *testing.T) {
			_, status, body := websocketTo(t, s, tc.target, tc.token)
			if status != tc.status || !strings.Contains(body, tc.body) {
				t.Errorf("%d %q, want %d %q", status, body, tc.status, tc.body)
			}
		})
	}
	c := s.dial(t)
	for headers, want := range map[string]string{
		"": "send Connection: Upgrade",
		"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 8\r\nSec-WebSocket-Key: " +
			"AAAAAAAAAAAAAAAAAAAAAA==\r\n": `must be 13, not "8"`,
		"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " +
			"x\r\n": "16 bytes in base64",
	} {
		text := strings.Replace(head("GET", execPath+execQuery(), operator, ""), "\r\n\r\n", "\r\n"+headers+"\r\n", 1)
		if got := c.send(t, "GET", text); got.Status != http.StatusBadRequest || !strings.Contains(got.Body, want) {
			t.Errorf("%q = %d %q, want 400 %q", headers, got.Status, got.Body, want)
		}
	}
}

// TestExecBadMessages end the session, and the command, with the reason.
func TestExecBadMessages(t *testing.T) {
	alloc := newAlloc(t)
	started := commands(alloc)
	s := newServer(t, alloc)
	for name, tc := range map[string]struct {
		message string
		code    int
		text    string
	}{
		"not JSON":      {"ls", websocket.ClosePolicyViolation, "Failed to decode frame"},
		"not an object": {"[]", websocket.ClosePolicyViolation, "Failed to decode frame"},
		"no base64":     {`{"stdin":{"data":"~"}}`, websocket.ClosePolicyViolation, "Failed to decode frame"},
		"too wide": {`{"tty_size":{"height":24,"width":1000000000}}`, websocket.ClosePolicyViolation,
			"each must be from 1 to 65535"},
		"less than none": {`{"tty_size":{"height":-1,"width":80}}`, websocket.ClosePolicyViolation, "-1 lines"},
		"beyond integer": {`{"tty_size":{"height":1e300,"width":80}}`, websocket.ClosePolicyViolation,
			"Failed to decode frame"},
		"too long": {`{"stdin":{"data":"` + strings.Repeat("A", 256<<10) + `"}}`, websocket.CloseMessageTooBig, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, status, body := websocketTo(t, s, execPath+execQuery(), operator)
			if status != http.StatusSwitchingProtocols {
				t.Fatal(status, body)
			}
			command := <-started
			go func() { _ = c.WriteMessage(websocket.TextMessage, []byte(tc.message)) }()
			if code, text := closeOf(t, c); code != tc.code || !strings.Contains(text, tc.text) {
				t.Errorf("closed with %d %q", code, text)
			}
			<-command.closed
		})
	}
}

// TestExecHandshake: a client that announces a first message sends its version, and no other token than the request's.
func TestExecHandshake(t *testing.T) {
	alloc := newAlloc(t)
	started := commands(alloc)
	s := newServer(t, alloc)
	for first, want := range map[string]string{
		`{"version":1,"auth_token":"` + operator + `"}`: "",
		`{"version":1}`:                        "",
		`{"version":2}`:                        "unexpected handshake value: 2",
		`{"version":1,"auth_token":"another"}`: "mismatched",
		`x`:                                    "Failed to decode handshake",
	} {
		c, status, body := websocketTo(t, s, execPath+execQuery("ws_handshake", "true"), operator)
		if status != http.StatusSwitchingProtocols {
			t.Fatal(status, body)
		}
		command := <-started
		for _, message := range []string{first, `{"stdin":{"data":"eA==","close":true}}`} {
			_ = c.WriteMessage(websocket.TextMessage, []byte(message)) // it may be closed by then
		}
		got, _ := io.ReadAll(command.stdin)
		if (string(got) == "x") != (want == "") {
			t.Errorf("%s: the input is %q", first, got)
		}
		command.end(0, nil)
		if _, text := closeOf(t, c); !strings.Contains(text, want) {
			t.Errorf("%s: closed with %q, want %q", first, text, want)
		}
	}
}

// TestExecEnds: an end of which nobody knows the exit code has its reason, and a client that goes away ends the
// command, also while that does not read.
func TestExecEnds(t *testing.T) {
	alloc := newAlloc(t)
	started := commands(alloc)
	s := newServer(t, alloc)
	c, _, _ := websocketTo(t, s, execPath+execQuery(), operator)
	command := <-started
	command.end(0, interfaces.ErrTaskNotRunning)
	if code, text := closeOf(t, c); code != websocket.ClosePolicyViolation ||
		text != "the task has ended, and with it the command" {
		t.Errorf("closed with %d %q", code, text)
	}
	c, _, _ = websocketTo(t, s, execPath+execQuery(), operator)
	command = <-started
	c.Close()
	<-command.closed
	<-command.ctx.Done()
}

// TestExecIsCut with a reason when the server stops, and when the token is not valid any more.
func TestExecIsCut(t *testing.T) {
	alloc := newAlloc(t)
	started := commands(alloc)
	var revoked atomic.Bool
	s := newServer(t, alloc, func(c *handlers.Config) { c.Authenticator = revocable{c.Authenticator, &revoked} })
	first, _, _ := websocketTo(t, s, execPath+execQuery(), operator)
	one := <-started
	revoked.Store(true)
	must.OK(t, first.WriteMessage(websocket.TextMessage, []byte("{}")))
	if code, text := closeOf(t, first); code != websocket.ClosePolicyViolation ||
		text != "the token is not valid any more" {
		t.Errorf("revoked: closed with %d %q", code, text)
	}
	<-one.closed
	revoked.Store(false)
	second, _, _ := websocketTo(t, s, execPath+execQuery(), operator)
	two := <-started
	stopped := make(chan struct{})
	go func() { s.stop(); close(stopped) }()
	if code, text := closeOf(t, second); code != websocket.CloseGoingAway || text != "taskapi stops" {
		t.Errorf("stopped: closed with %d %q", code, text)
	}
	<-two.closed
	<-stopped
}

// gated is a connection that reads nothing before its gate opens.
type gated struct {
	net.Conn
	gate <-chan struct{}
}

func (c gated) Read(b []byte) (int, error) {
	<-c.gate
	return c.Conn.Read(b)
}

// TestExecIsCutAsItOpens: a client learns why its session is cut also when it has not yet read that it has one.
func TestExecIsCutAsItOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := newAlloc(t)
		started := commands(alloc)
		dial, stop := bubbled(t, alloc)
		gate := make(chan struct{})
		client := make(chan *websocket.Conn)
		go func() { client <- bubbledExec(t, gated{dial(), gate}) }()
		<-started
		synctest.Wait() // the server writes 101
		stopped := make(chan struct{})
		go func() { stop(); close(stopped) }()
		synctest.Wait()
		close(gate)
		c := <-client
		defer c.Close()
		if code, text := closeOf(t, c); code != websocket.CloseGoingAway || text != "taskapi stops" {
			t.Errorf("closed with %d %q", code, text)
		}
		<-stopped
	})
}

// TestExecEndsWithItsToken: a session of which nobody hears is ended when the token expires.
func TestExecEndsWithItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := newAlloc(t)
		started := commands(alloc)
		const lasts = 25 * time.Second
		begin := time.Now()
		dial, stop := bubbled(t, alloc, func(c *handlers.Config) {
			c.Authenticator = &streamAuthenticator{expires: begin.Add(lasts).Unix()}
		})
		defer stop()
		c := bubbledExec(t, dial())
		defer c.Close()
		command := <-started
		if code, text := closeOf(t, c); code != websocket.ClosePolicyViolation || text != "the token is not valid any more" {
			t.Errorf("closed with %d %q", code, text)
		}
		<-command.closed
		<-command.ctx.Done()
		if took := time.Since(begin); took != lasts {
			t.Errorf("ended after %v; the token lasts %v", took, lasts)
		}
	})
}

// revocable is an authenticator that thinks again.
type revocable struct {
	route.Authenticator
	revoked *atomic.Bool
}

func (r revocable) Recheck(q *http.Request, p *auth.Principal, owner auth.Owner, peer auth.Peer) *auth.Denial {
	if r.revoked.Load() {
		return forbidden
	}
	return r.Authenticator.Recheck(q, p, owner, peer)
}

// TestExecClientThatDoesNotTake output makes the command wait, and no more is kept of it than a few messages; others go
// on.
func TestExecClientThatDoesNotTake(t *testing.T) {
	alloc := newAlloc(t)
	started := commands(alloc)
	s := newServer(t, alloc)
	c, _, _ := websocketTo(t, s, execPath+execQuery(), operator)
	command := <-started
	var written atomic.Int64
	wrote := make(chan error)
	go func() {
		var err error
		for err == nil {
			var n int
			n, err = command.stdout.Write(make([]byte, 32<<10))
			written.Add(int64(n))
		}
		wrote <- err
	}()
	other, _, _ := websocketTo(t, s, execPath+execQuery(), operator)
	neighbour := <-started
	for range 50 { // in its time the first would have written much more
		go func() { _, _ = neighbour.stdout.Write([]byte("x")) }()
		if _, _, err := other.ReadMessage(); err != nil {
			t.Fatal(err)
		}
	}
	if n := written.Load(); n > 4<<20 {
		t.Errorf("%d bytes were taken of a command whose client takes nothing", n)
	}
	c.Close()
	<-command.closed
	if err := <-wrote; err == nil {
		t.Error("the command still writes")
	}
}

// bubbledExec opens a session in a bubble.
func bubbledExec(t *testing.T, conn net.Conn) *websocket.Conn {
	t.Helper()
	dialer := websocket.Dialer{NetDialContext: func(context.Context, string, string) (net.Conn, error) {
		return conn,
			nil
	}}
	c, _, err := dialer.Dial("ws://local"+execPath+execQuery(), http.Header{"X-Nomad-Token": {operator}})
	must.OK(t, err)
	return c
}

// TestExecHeartbeats come every ten seconds. By them it shows within that time that a client has gone, also while its
// command does not read what the client has sent.
func TestExecHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := newAlloc(t)
		started := commands(alloc)
		dial, stop := bubbled(t, alloc)
		defer stop()
		c := bubbledExec(t, dial())
		command, start := <-started, time.Now()
		for i := range 3 {
			_, message, err := c.ReadMessage()
			if took := time.Since(start); string(message) != "{}" || err != nil || took != time.Duration(i+1)*10*time.Second {
				t.Fatalf("after %v: %q, %v", took, message, err)
			}
		}
		// which nobody reads
		must.OK(t, c.WriteMessage(websocket.TextMessage, []byte(`{"stdin":{"data":"eA=="}}`)))
		synctest.Wait()
		gone := time.Now()
		c.Close()
		<-command.closed
		if took := time.Since(gone); took > 10*time.Second {
			t.Errorf("the command was ended after %v", took)
		}
	})
}

// TestExecPaging: a client may take an hour for a piece of the output, and no longer.
func TestExecPaging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := newAlloc(t)
		started := commands(alloc)
		dial, stop := bubbled(t, alloc)
		defer stop()
		c := bubbledExec(t, dial())
		defer c.Close()
		command := <-started
		go func() { _, _ = command.stdout.Write([]byte("x")) }()
		synctest.Wait()
		start := time.Now()
		<-command.closed
		if took := time.Since(start); took < time.Hour || took > time.Hour+2*time.Second {
			t.Errorf("cut off after %v, want an hour", took)
		}
	})
}

// TestTasksExecsAreBounded, so that the operator always gets in.
func TestTasksExecsAreBounded(t *testing.T) {
	alloc := newAlloc(t)
	started := commands(alloc)
	s := newServer(t, alloc)
	ask := func(token string) (*websocket.Conn, int) {
		c, status, _ := websocketTo(t, s, execPath+execQuery(), token)
		return c, status
	}
	for i := range 24 {
		if _, status := ask(execToken); status != http.StatusSwitchingProtocols {
			t.Fatalf("number %d = %d", i, status)
		}
	}
	if _, status := ask(execToken); status != http.StatusTooManyRequests {
		t.Errorf("one more = %d, want 429", status)
	}
	if _, status := ask(operator); status != http.StatusSwitchingProtocols {
		t.Errorf("the operator's = %d, want 101", status)
	}
	first := <-started
	first.end(0, nil)
	<-first.closed
}

// TestExecIsRecorded with the task and the program, and not with its arguments. What else the query holds hides
// nothing.
func TestExecIsRecorded(t *testing.T) {
	alloc := newAlloc(t)
	alloc.signal = func(context.Context, string, string) error { return nil }
	started := commands(alloc)
	s := newServer(t, alloc)
	c, _, _ := websocketTo(t, s, execPath+execQuery("command", `["mysql","--password=secret"]`, "action",
		"harmless"), operator)
	command := <-started
	command.end(0, nil)
	closeOf(t, c)
	for target, want := range map[string]int{
		"/v1/job/demo/action?task=server&action=restore&command=%5B%22ls%22%5D": 404, // there is none
		execPath + execQuery("command", "ls"):                                   400,
	} {
		if _, status, body := websocketTo(t, s, target, operator); status != want {
			t.Errorf("%s = %d %s, want %d", target, status, body, want)
		}
	}
	const signalPath = "/v1/client/allocation/" + allocID + "/signal"
	if got := s.do(t, "PUT", signalPath+execQuery(), operator, `{"Signal":"SIGHUP","Task":"server"}`); got.Status != 200 {
		t.Error(got)
	}
	s.stop() // a session is recorded at its end
	var programs []string
	for _, record := range s.audited() {
		if text, _ := json.Marshal(record); strings.Contains(string(text), "secret") {
			t.Errorf("recorded: %s", text)
		}
		programs = append(programs, record.Program)
	}
	slices.Sort(programs)
	if want := []string{"", "", "server: action restore", "server: mysql"}; !slices.Equal(programs, want) {
		t.Errorf("recorded programs: %q, want %q: a signal runs none, nor does what is no command", programs, want)
	}
}
