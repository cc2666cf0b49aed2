// Package client talks to the taskapi that runs an allocation, over the operator's socket, with Nomad's SDK and the
// operator's token. Its Locate is the one place that says who has an allocation. The package is for the commands: it
// prints nothing, and its errors name none.
package client

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
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/auth"
	"taskapi/identity/workload"
	"taskapi/internal/proc"
	"taskapi/internal/slice"
	"taskapi/socket"
)

// Every time-out of a command that waits for another taskapi.
const (
	// answerTimeout bounds a request to a taskapi, which answers from memory, or writes a few pages to the disk.
	answerTimeout = 10 * time.Second
	// changeWait is how long a taskapi waits for a change before it answers; see Client.ChangeWait.
	changeWait = time.Minute
	// refusedTimeout is how long a refused request is repeated: a taskapi whose allocation has ended refuses every
	// token and exits soon.
	refusedTimeout = 2 * time.Second
	// closedTimeout is how long a taskapi whose allocation has ended may take to deliver the last updates and close its
	// socket.
	closedTimeout = 3 * time.Second
	// BusyTimeout is how long a taskapi that has an allocation and does not answer may take to start or to exit.
	BusyTimeout = 15 * time.Second
	// Pause is the pause between two looks at an allocation. A start takes some 20 ms.
	Pause = 5 * time.Millisecond
)

// ErrNoAnswer means that no taskapi answers on an allocation's operator socket. The cause is wrapped with it.
var ErrNoAnswer = errors.New("no taskapi answers")

// StatusError is an answer with a status other than 200.
type StatusError struct {
	Status  int
	Message string
}

func (e *StatusError) Error() string { return e.Message }

// Refused reports whether err is a refusal of the operator's token: the token is not valid, or the allocation has just
// ended.
func Refused(err error) bool {
	s, ok := errors.AsType[*StatusError](err)
	return ok && (s.Status == http.StatusUnauthorized || s.Status == http.StatusForbidden)
}

// Client talks to the taskapi that runs one allocation. Close it after use.
type Client struct {
	ChangeWait time.Duration // how long Changed waits for a change; a minute by default

	dir  datadir.Dir
	id   string
	http *http.Client
}

// New returns a client of an allocation. It does not connect yet.
func New(dir datadir.Dir, id string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return socket.Dial(ctx, dir.OperatorSocket(id))
	}
	transport := &http.Transport{DialContext: dial}
	return &Client{ChangeWait: changeWait, dir: dir, id: id, http: &http.Client{Transport: transport}}
}

// Close closes the client's connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// token returns the operator's token. It is read for each request, since the taskapi replaces it from time to time.
func (c *Client) token() (string, error) {
	token, err := workload.ReadOperatorToken(c.dir.OperatorToken(c.id))
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	return strings.TrimSpace(token), nil
}

// SDK returns Nomad's SDK on the operator's socket, with the operator's present token. A caller that outlasts the token
// calls SDK again. Errors: ErrNoAnswer.
func (c *Client) SDK() (*api.Client, error) {
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	return api.NewClient(&api.Config{Address: "http://taskapi", HttpClient: c.http, SecretID: token})
}

// get sends a GET request and returns the allocation's index from the answer.
func (c *Client) get(ctx context.Context, timeout time.Duration, path string, into any) (index uint64, err error) {
	sdk, err := c.SDK()
	if err != nil {
		return 0, err
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	meta, err := sdk.Raw().Query(path, into, (&api.QueryOptions{}).WithContext(bounded))
	if err != nil {
		return 0, AsError(ctx, err)
	}
	return meta.LastIndex, nil
}

// put sends a PUT request. A nil into drops the answer.
func (c *Client) put(ctx context.Context, path string, body, into any) error {
	sdk, err := c.SDK()
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	_, err = sdk.Raw().Write(path, body, into, (&api.WriteOptions{}).WithContext(bounded))
	return AsError(ctx, err)
}

// AsError returns the SDK's error as one of this package: a *StatusError, the cause of ctx's end, or ErrNoAnswer.
func AsError(ctx context.Context, err error) error {
	status, answered := errors.AsType[api.UnexpectedResponseError](err)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case answered && status.HasStatusCode():
		return &StatusError{status.StatusCode(), strings.TrimSpace(status.Body())}
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok { // the URL in it helps nobody
		err = wrapped.Err
	}
	return fmt.Errorf("%w: %w", ErrNoAnswer, err)
}

// Do sends a request and returns the answer with any status. The caller closes its body. Errors: ErrNoAnswer; the
// method or the path can't be sent.
func (c *Client) Do(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://taskapi"+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-Nomad-Token", token)
	resp, err := c.http.Do(req)
	return resp, AsError(ctx, err)
}

// Allocation returns the allocation as it stands, and the body of the answer. Errors: ErrNoAnswer, *StatusError, ctx's.
func (c *Client) Allocation(ctx context.Context) (*api.Allocation, []byte, error) {
	var body json.RawMessage
	if _, err := c.get(ctx, answerTimeout, c.path("?pretty"), &body); err != nil {
		return nil, nil, err
	}
	var alloc api.Allocation
	if err := json.Unmarshal(body, &alloc); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	return &alloc, bytes.TrimSpace(body), nil
}

// Changed returns the allocation once its index is above the given one, or after a while. Errors: those of Allocation.
func (c *Client) Changed(ctx context.Context, index uint64) (*api.Allocation, uint64, error) {
	var alloc api.Allocation
	path := c.path(fmt.Sprintf("?index=%d&wait=%v", index, c.ChangeWait))
	next, err := c.get(ctx, c.ChangeWait+answerTimeout, path, &alloc)
	return &alloc, next, err
}

// Refusals returns what the allocation's tasks were refused, as events of these tasks for people to read. Errors: those
// of Allocation.
func (c *Client) Refusals(ctx context.Context) (map[string][]*api.TaskEvent, error) {
	var refused map[string][]auth.Refusal
	if _, err := c.get(ctx, answerTimeout, "/v1/client/allocation/"+c.id+"/refusals", &refused); err != nil {
		return nil, err
	}
	events := map[string][]*api.TaskEvent{}
	for task, all := range refused {
		events[task] = slice.Map(all, func(r auth.Refusal) *api.TaskEvent {
			return &api.TaskEvent{Time: r.Time.UnixNano(), Type: "Refused", DisplayMessage: r.String()}
		})
	}
	return events, nil
}

func (c *Client) path(rest string) string { return "/v1/allocation/" + c.id + rest }

// StopOptions say how an allocation stops. The zero value stops it gracefully.
type StopOptions struct {
	NoShutdownDelay bool
	Now             bool // kill every task at once
}

// Stop begins the stop of the allocation. Errors: those of Allocation.
func (c *Client) Stop(ctx context.Context, how StopOptions) error {
	return c.put(ctx, c.path(fmt.Sprintf("/stop?no_shutdown_delay=%t&now=%t", how.NoShutdownDelay, how.Now)), nil, nil)
}

// Restart restarts one task, the running tasks, or all tasks, and returns when the old processes are gone. No time-out
// bounds that, since their job says how long they may take. Errors: those of Allocation.
func (c *Client) Restart(ctx context.Context, want api.AllocationRestartRequest) error {
	sdk, err := c.SDK()
	if err != nil {
		return err
	}
	_, err = sdk.Raw().Write("/v1/client/allocation/"+c.id+"/restart", want, nil, (&api.WriteOptions{}).WithContext(ctx))
	return AsError(ctx, err)
}

// Collect lets the taskapi remove its ended allocation. Errors: those of Allocation.
func (c *Client) Collect(ctx context.Context) error {
	return c.put(ctx, "/v1/client/allocation/"+c.id+"/gc", nil, nil)
}

// Plan returns what a job would change. Errors: those of Allocation.
func (c *Client) Plan(ctx context.Context, job *api.Job) (*api.JobPlanResponse, error) {
	var plan api.JobPlanResponse
	err := c.put(ctx, "/v1/job/"+url.PathEscape(*job.ID)+"/plan", api.JobPlanRequest{Job: job, Diff: true}, &plan)
	return &plan, err
}

// Register gives the allocation a job, if its present job still has the JobModifyIndex. Changes that need new processes
// are refused unless what they need is allowed: restarts of the changed tasks, or a replacement. Errors: those of
// Allocation.
func (c *Client) Register(ctx context.Context, job *api.Job, index uint64, restart, replace bool) error {
	request := api.JobRegisterRequest{Job: job, EnforceIndex: true, JobModifyIndex: index}
	return c.put(ctx, fmt.Sprintf("/v1/jobs?force=%t&restart=%t", replace, restart), request, nil)
}

// SignalError says that a taskapi process could not be sent a signal.
type SignalError struct {
	PID int
	Err error
}

func (e *SignalError) Error() string {
	return fmt.Sprintf("process %d can't be sent a signal: %v", e.PID, e.Err)
}

func (e *SignalError) Unwrap() error { return e.Err }

// Signal sends signals to the taskapi that runs the allocation, and returns its process ID. It needs no token. Errors:
// ErrNoAnswer when there is no such process, *SignalError.
func (c *Client) Signal(ctx context.Context, signals ...syscall.Signal) (pid int, err error) {
	pid, err = c.listener(ctx)
	if err == nil && pid <= 0 {
		err = errors.New("it is in another PID namespace")
	}
	if errors.Is(err, ErrNoAnswer) {
		return 0, err
	}
	for _, sig := range signals {
		if err == nil {
			err = syscall.Kill(pid, sig)
		}
	}
	switch {
	case errors.Is(err, syscall.ESRCH):
		return 0, fmt.Errorf("%w: it has just exited", ErrNoAnswer)
	case err != nil:
		return 0, &SignalError{pid, err}
	}
	return pid, nil
}

// listener returns the process that listens on the operator's socket. Errors: ErrNoAnswer when none does.
func (c *Client) listener(ctx context.Context) (pid int, err error) {
	conn, err := socket.Dial(ctx, c.dir.OperatorSocket(c.id))
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	defer conn.Close()
	peer, err := socket.ListenerOf(conn)
	return int(peer.PID), err
}

// FrozenError says that a signal, such as SIGSTOP, or a debugger has stopped the taskapi process, which does nothing
// until it is continued.
type FrozenError struct{ PID int }

func (e *FrozenError) Error() string { return fmt.Sprintf("process %d is stopped (SIGSTOP)", e.PID) }

// frozen returns a *FrozenError if the process that listens on the operator's socket is stopped; else nil.
func (c *Client) frozen(ctx context.Context) error {
	pid, err := c.listener(ctx)
	if err != nil || pid <= 0 {
		return nil //nolint:nilerr // there is no process to look at
	}
	if stat, err := proc.Read(pid); err == nil && stat.Stopped { // an error when the process is hidden
		return &FrozenError{pid}
	}
	return nil
}

// ServedBy reports whether a process listens on the operator's socket.
func (c *Client) ServedBy(ctx context.Context, pid int) bool {
	listener, err := c.listener(ctx)
	return err == nil && listener == pid
}
