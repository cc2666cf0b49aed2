package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/interfaces"
	"taskapi/cmd/taskapi/internal/agent"
	"taskapi/identity/workload"
	"taskapi/socket"
)

// answerTimeout bounds a question to a running sidecar, which answers from memory, or writes a few pages to the disk.
const answerTimeout = 10 * time.Second

// errSilentSidecar: nobody answers on the operator's socket of an allocation.
var errSilentSidecar = errors.New("no taskapi answers for it")

// refusedError is an answer with another status than 200.
type refusedError struct {
	status  int
	message string
}

func (e *refusedError) Error() string { return e.message }

// errMute is why a sidecar that runs an allocation can't be asked.
func (l layout) errMute(id string, err error) error {
	if refused(err) {
		return fmt.Errorf("allocation %s is run by a taskapi that refuses the token in %s: %w; '%s' %s has one with a good token go on in its place",
			id, l.OperatorToken(id), err, l.Command("run", "--take-over", "--alloc-id", id), withJobFile)
	}
	return fmt.Errorf("allocation %s is run by a taskapi that does not answer; it may be about to: try again: %w", id, err)
}

// withJobFile is what a command line lacks that runs an allocation again.
const withJobFile = "with the job file and its variables"

// refused reports that a sidecar does not accept the operator's token: it is no good, or the allocation is just over.
func refused(err error) bool {
	r, ok := errors.AsType[*refusedError](err)
	return ok && (r.status == http.StatusUnauthorized || r.status == http.StatusForbidden)
}

// refusedTimeout is how long a sidecar is asked again that refuses the operator's token: one whose allocation is over ends soon.
const refusedTimeout = 2 * time.Second

// errNoState is for an allocation of which nothing is written down.
func (l layout) errNoState(id string) error {
	return fmt.Errorf("allocation %s has left no state: its taskapi ended before anything ran, or was killed early on; '%s' removes it", id, l.Command("gc", id))
}

// client asks the sidecar that runs an allocation, over the operator's socket. Close it after use.
type client struct {
	layout layout
	id     string
	http   *http.Client
}

func (l layout) client(id string) *client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return socket.Dial(ctx, l.OperatorSocket(id))
	}
	return &client{layout: l, id: id, http: &http.Client{Transport: &http.Transport{DialContext: dial}}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// answer is what a sidecar answers.
type answer struct {
	body  []byte
	index uint64 // of the allocation
}

// do sends a request with the operator's token, which is read anew each time, since the sidecar may have replaced it. A body is sent as
// JSON. Errors: errSilentSidecar, with its cause; *refusedError; ctx's.
func (c *client) do(ctx context.Context, timeout time.Duration, method, path string, body any) (answer, error) {
	var content io.Reader = http.NoBody
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return answer{}, fmt.Errorf("encode %T: %w", body, err)
		}
		content = bytes.NewReader(encoded)
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := c.request(bounded, method, path, content)
	if err != nil {
		return answer{}, err
	}
	a, err := c.send(req)
	if ctx.Err() != nil {
		return answer{}, context.Cause(ctx)
	}
	return a, err
}

// request is a request with the operator's token as its file has it now. Errors: errSilentSidecar when there is none.
func (c *client) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	token, err := workload.ReadOperatorToken(c.layout.OperatorToken(c.id))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSilentSidecar, err)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://taskapi"+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-Nomad-Token", strings.TrimSpace(token))
	return req, nil
}

// roundTrip sends a request. Errors: errSilentSidecar, with its cause.
func (c *client) roundTrip(req *http.Request) (*http.Response, error) {
	resp, err := c.http.Do(req)
	if wrapped, ok := errors.AsType[*url.Error](err); ok { // its URL is of no help to anybody
		err = wrapped.Err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSilentSidecar, err)
	}
	return resp, nil
}

func (c *client) send(req *http.Request) (answer, error) {
	resp, err := c.roundTrip(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, fmt.Errorf("%w: %w", errSilentSidecar, err)
	}
	if resp.StatusCode != http.StatusOK {
		return answer{}, &refusedError{resp.StatusCode, strings.TrimSpace(string(body))}
	}
	a := answer{body: body}
	if _, err := fmt.Sscan(resp.Header.Get("X-Nomad-Index"), &a.index); err != nil {
		a.index = 0 // an answer without one
	}
	return a, nil
}

// ask is a question, and tell something that changes the allocation. into gets the answer, unless it is nil.
func (c *client) ask(ctx context.Context, path string, into any) (answer, error) {
	a, err := c.do(ctx, answerTimeout, http.MethodGet, path, nil)
	return a, decoded(err, a, into)
}

func (c *client) tell(ctx context.Context, path string, body, into any) error {
	a, err := c.do(ctx, answerTimeout, http.MethodPut, path, body)
	return decoded(err, a, into)
}

func decoded(err error, a answer, into any) error {
	if err != nil || into == nil {
		return err
	}
	if err := json.Unmarshal(a.body, into); err != nil {
		return fmt.Errorf("the answer can't be read: %w", err)
	}
	return nil
}

// allocation is the allocation as it stands, and as it was answered.
func (c *client) allocation(ctx context.Context) (*api.Allocation, []byte, error) {
	var alloc api.Allocation
	a, err := c.ask(ctx, "/v1/allocation/"+c.id+"?pretty", &alloc)
	return &alloc, a.body, err
}

// changeWait is how long a sidecar is asked to wait for a change. Nothing depends on it.
const changeWait = time.Minute

// changed is the allocation once its index is above the one given, or when that takes long.
func (c *client) changed(ctx context.Context, index uint64) (*api.Allocation, uint64, error) {
	path := fmt.Sprintf("/v1/allocation/%s?index=%d&wait=%v", c.id, index, changeWait)
	a, err := c.do(ctx, changeWait+answerTimeout, http.MethodGet, path, nil)
	var alloc api.Allocation
	if err := decoded(err, a, &alloc); err != nil {
		return nil, 0, err
	}
	return &alloc, a.index, nil
}

// closedTimeout is how long a sidecar whose allocation has ended may take to deliver the last updates and close its socket.
const closedTimeout = agent.FlushTimeout + time.Second

// awaitClosed waits until the operator's socket is another one than it was when it was asked, or none: a sidecar whose allocation has ended
// closes it.
func (c *client) awaitClosed(ctx context.Context, asked os.FileInfo) {
	if asked == nil {
		return
	}
	for since := time.Now(); ctx.Err() == nil && time.Since(since) < closedTimeout; time.Sleep(startPause) {
		now, err := os.Stat(c.layout.OperatorSocket(c.id))
		if err != nil || !os.SameFile(asked, now) {
			return
		}
	}
}

// isLeaving reports that whoever was asked is gone, or on its way out: another taskapi can have the allocation in a moment.
func isLeaving(err error) bool {
	refused, ok := errors.AsType[*refusedError](err)
	return errors.Is(err, errSilentSidecar) || ok && refused.message == agent.MessageLeaving
}

// askToLeave tells the taskapi that runs the allocation to leave it, and does not wait for that. Errors: errSilentSidecar when there is
// none, and that the process can't be told.
func (c *client) askToLeave(ctx context.Context) error {
	_, err := c.signal(ctx, syscall.SIGUSR1)
	return err
}

// signal sends signals to the taskapi that runs the allocation, and gives its process ID. Errors: those of askToLeave.
func (c *client) signal(ctx context.Context, signals ...syscall.Signal) (pid int, err error) {
	conn, err := socket.Dial(ctx, c.layout.OperatorSocket(c.id))
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errSilentSidecar, err)
	}
	defer conn.Close()
	peer, err := socket.ListenerOf(conn)
	if err == nil && peer.PID <= 0 {
		err = errors.New("it is in another PID namespace")
	}
	for _, sig := range signals {
		if err == nil {
			err = syscall.Kill(int(peer.PID), sig)
		}
	}
	if errors.Is(err, syscall.ESRCH) {
		return 0, fmt.Errorf("%w: it has just ended", errSilentSidecar)
	}
	if err != nil {
		return 0, fmt.Errorf("the taskapi of allocation %s, process %d, can't be sent a signal: %w", c.id, peer.PID, err)
	}
	return int(peer.PID), nil
}

// answeredBy reports that a process listens on the allocation's socket.
func (c *client) answeredBy(ctx context.Context, pid int) bool {
	conn, err := socket.Dial(ctx, c.layout.OperatorSocket(c.id))
	if err != nil {
		return false
	}
	defer conn.Close()
	peer, err := socket.ListenerOf(conn)
	return err == nil && int(peer.PID) == pid
}

// stop asks for the end of the allocation: in order, or now.
func (c *client) stop(ctx context.Context, how interfaces.StopRequest, now bool) error {
	return c.tell(ctx, fmt.Sprintf("/v1/allocation/%s/stop?no_shutdown_delay=%t&now=%t", c.id, how.NoShutdownDelay, now), nil, nil)
}
