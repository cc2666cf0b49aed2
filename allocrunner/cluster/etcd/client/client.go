// Package client is a small client of etcd's JSON gateway, on net/http: keys, transactions, leases and watches. It
// knows several endpoints of one cluster, and uses the next endpoint when one does not answer. It bounds the answers
// that it reads. A request that must not be carried out twice is not repeated once etcd may have received it.
package client

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/internal/wake"
)

const (
	// attemptTimeout bounds one attempt at one of several endpoints, which may be frozen.
	attemptTimeout = 2 * time.Second
	// callTimeout bounds all attempts of a request. The only endpoint has all of this time: it may be busy.
	callTimeout = 10 * time.Second
	dialTimeout = time.Second
	// ackTimeout bounds how long the other machine's kernel may acknowledge nothing, as when the network is cut.
	ackTimeout = 3 * time.Second
	// pause lies between attempts when every endpoint has failed.
	pause = 100 * time.Millisecond

	maxAnswer = 96 << 20 // of a page of values in base64
	maxEvents = 96 << 20 // of one answer of a watch
	maxError  = 64 << 10
)

// Config says where etcd is.
type Config struct {
	Endpoints []string                    // URLs: http://HOST:PORT or https://HOST:PORT; at least one
	TLS       func() (*tls.Config, error) // for one connection; https needs it
	User      string                      // empty for none
	Password  func() (string, error)
}

// Client asks one etcd cluster. Its methods may be called from several goroutines.
type Client struct {
	config  Config
	timeout time.Duration // of an attempt
	http    *http.Client
	at      atomic.Int32 // which endpoint is asked first

	mu    sync.Mutex // guards token
	token string
}

// New returns a client, which connects with its first request.
func New(c Config) *Client {
	timeout := callTimeout
	if len(c.Endpoints) > 1 {
		timeout = attemptTimeout
	}
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 5 * time.Second, Control: boundAcks}
	return &Client{config: c, timeout: timeout, http: &http.Client{
		Transport: &http.Transport{
			DialContext: dialer.DialContext,
			DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				settings, err := c.TLS()
				if err != nil {
					return nil, err
				}
				whole := *dialer
				whole.Timeout += attemptTimeout // for the handshake
				return (&tls.Dialer{NetDialer: &whole, Config: settings}).DialContext(ctx, network, address)
			},
			// Requests must not share a connection, which may be frozen: no HTTP/2.
			TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
			DisableCompression:  true,
			MaxIdleConnsPerHost: 16,
			IdleConnTimeout:     time.Minute,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// boundAcks lets a connection fail when the network is cut. A server that is only busy still acknowledges what it gets.
func boundAcks(_, _ string, conn syscall.RawConn) error {
	var failed error
	err := conn.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(ackTimeout.Milliseconds()))
	})
	return errors.Join(err, failed)
}

// Close closes the connections that no request uses.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Range returns keys. It sees every change that was made before it was called.
func (c *Client) Range(ctx context.Context, request RangeRequest) (answer RangeResponse, err error) {
	err = c.call(ctx, "kv/range", request, &answer, true)
	return answer, err
}

// Txn applies a transaction. It is not sent again when it may have been applied: the error then is an *UncertainError.
func (c *Client) Txn(ctx context.Context, request Txn) (answer TxnResponse, err error) {
	err = c.call(ctx, "kv/txn", request, &answer, false)
	return answer, err
}

// Grant begins a lease with an ID that the caller chooses.
func (c *Client) Grant(ctx context.Context, id int64, ttl time.Duration) error {
	err := c.call(ctx, "lease/grant", leaseRequest{ID: id, TTL: int64(ttl.Seconds())}, &leaseResponse{}, true)
	if is(err, codeExists, codeFailed) { // an earlier attempt did it
		return nil
	}
	return err
}

// KeepAlive renews a lease, and returns how long it lives without another renewal; 0 when it has ended.
func (c *Client) KeepAlive(ctx context.Context, id int64) (time.Duration, error) {
	var answer struct {
		Result leaseResponse `json:"result"`
		Error  *Error        `json:"error"`
	}
	if err := c.call(ctx, "lease/keepalive", leaseRequest{ID: id}, &answer, true); err != nil {
		return 0, err
	}
	if answer.Error != nil {
		return 0, answer.Error
	}
	return time.Duration(min(max(answer.Result.TTL, 0), 1<<30)) * time.Second, nil
}

// LeaseKeys returns the keys of a lease.
func (c *Client) LeaseKeys(ctx context.Context, id int64) ([][]byte, error) {
	var answer leaseResponse
	err := c.call(ctx, "lease/timetolive", leaseRequest{ID: id, Keys: true}, &answer, true)
	return answer.Keys, err
}

// Revoke ends a lease.
func (c *Client) Revoke(ctx context.Context, id int64) error {
	err := c.call(ctx, "lease/revoke", leaseRequest{ID: id}, &leaseResponse{}, true)
	if is(err, codeNotFound) {
		return nil
	}
	return err
}

// call sends a request to one endpoint after the other until one answers, callTimeout is over or ctx ends. A request
// that is not safe is sent again only if no endpoint can have got it.
func (c *Client) call(ctx context.Context, path string, request, answer any, safe bool) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for n := 1; ; n++ {
		at := c.at.Load()
		sent, err := c.attempt(ctx, int(at), path, body, answer)
		e, answered := errors.AsType[*Error](err)
		switch {
		case err == nil:
			return nil
		case answered && !e.uncertain():
			return err
		case sent && !safe:
			c.next(at)
			return &UncertainError{err}
		}
		c.next(at)
		if ctx.Err() != nil || n > len(c.config.Endpoints) {
			return err
		}
		if n >= len(c.config.Endpoints) {
			_ = wake.Sleep(ctx, pause) // the next attempt sees that ctx has ended
		}
	}
}

// next gives up on an endpoint, unless another caller already has.
func (c *Client) next(at int32) {
	c.at.CompareAndSwap(at, (at+1)%int32(len(c.config.Endpoints)))
}

// attempt sends a request to one endpoint. sent says that etcd may have got it.
func (c *Client) attempt(ctx context.Context, at int, path string, body []byte, answer any) (sent bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	response, sent, err := c.send(ctx, at, path, body)
	if err != nil {
		return sent, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return true, fmt.Errorf("%s: %w", c.config.Endpoints[at], err)
	case len(data) > maxAnswer:
		return true, tooLong(c.config.Endpoints[at], maxAnswer)
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return true, c.garbage(at, err)
	}
	return true, nil
}

func tooLong(endpoint string, most int) error {
	return fmt.Errorf("%s: its answer has more than %d bytes", endpoint, most)
}

// garbage returns the error for an answer that is not etcd's.
func (c *Client) garbage(at int, err error) error {
	return fmt.Errorf("%s does not answer as etcd does: %w", c.config.Endpoints[at], err)
}

// send sends a request, and returns the response if its status is 200. The caller closes its body.
func (c *Client) send(ctx context.Context, at int, path string, body []byte) (_ *http.Response, sent bool, _ error) {
	for again := false; ; again = true {
		token, err := c.authenticate(ctx, at)
		if err != nil {
			return nil, false, err
		}
		response, sent, err := c.post(ctx, at, path, body, token)
		if err != nil || response.StatusCode == http.StatusOK {
			return response, sent, err
		}
		e := new(Error)
		data, err := io.ReadAll(io.LimitReader(response.Body, maxError))
		response.Body.Close()
		if err == nil {
			err = json.Unmarshal(data, e)
		}
		if err != nil || e.Message == "" {
			return nil, true, fmt.Errorf("%s answers with status %d, and not as etcd does", c.config.Endpoints[at],
				response.StatusCode)
		}
		if token == "" || again || e.Code != codeStranger && !isOldToken(e.Message) {
			return nil, true, e
		}
		c.forget(token)
	}
}

var errLate = errors.New("no answer in time")

func (c *Client) post(
	ctx context.Context, at int, path string, body []byte, token string,
) (*http.Response, bool, error) {
	var sent atomic.Bool
	connected := func(httptrace.GotConnInfo) { sent.Store(true) }
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: connected})
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.config.Endpoints[at]+"/v3/"+path,
		bytes.NewReader(body))
	if err != nil {
		return nil, false, err
	}
	request.Header.Set("Content-Type", "application/json")
	if token != "" {
		request.Header.Set("Authorization", token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		if cause := errors.Unwrap(err); cause != nil { // without the method and the path
			err = cause
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = errLate
		}
		return nil, sent.Load(), fmt.Errorf("%s: %w", c.config.Endpoints[at], err)
	}
	return response, true, nil
}

// authenticate returns the token of the user; empty without a user.
func (c *Client) authenticate(ctx context.Context, at int) (string, error) {
	if c.config.User == "" {
		return "", nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.token != "" {
		return c.token, nil
	}
	password, err := c.config.Password()
	if err != nil {
		return "", err
	}
	body, err := json.Marshal(map[string]string{"name": c.config.User, "password": password})
	if err != nil {
		return "", err
	}
	response, _, err := c.post(ctx, at, "auth/authenticate", body, "")
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var answer struct {
		Token   string `json:"token"`
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxError)).Decode(&answer); err != nil {
		return "", c.garbage(at, err)
	}
	if answer.Token == "" {
		return "", &Error{Code: answer.Code, Message: answer.Message}
	}
	c.token = answer.Token
	return c.token, nil
}

// forget removes a token that etcd no longer accepts.
func (c *Client) forget(token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.token == token {
		c.token = ""
	}
}

// forgetOld removes the token if etcd says that it no longer accepts the token.
func (c *Client) forgetOld(message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if isOldToken(message) {
		c.token = ""
	}
}

// Watch is a stream of changes. Its methods are for one goroutine.
type Watch struct {
	client *Client
	at     int32
	body   io.ReadCloser
	lines  *bufio.Reader
	stop   context.CancelFunc
	first  *WatchResponse // read, but not returned by Next; nil for none
	began  time.Time
	heard  atomic.Int64 // when something was read last, in nanoseconds after began; negative while Next is not called
}

// Heard returns the time at which the stream last received something. While the caller works on an answer, that is the
// present time. Any goroutine may call it.
func (w *Watch) Heard() time.Time {
	if heard := w.heard.Load(); heard >= 0 {
		return w.began.Add(time.Duration(heard)) // no matter what is done to the clock
	}
	return time.Now()
}

// Moved reports whether requests go to another endpoint by now, because the watch's own did not answer one. Any
// goroutine may call it.
func (w *Watch) Moved() bool { return w.at != w.client.at.Load() }

// Watch begins to watch all keys with a prefix, from a revision on. It has one attempt; the next Watch asks the next
// endpoint.
func (c *Client) Watch(ctx context.Context, prefix string, from uint64) (*Watch, error) {
	var request watchRequest
	request.Create.Key, request.Create.End = []byte(prefix), PrefixEnd(prefix)
	request.Create.Start, request.Create.Fragment = from, true
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := func() { cancel(nil) }
	at := c.at.Load()
	late := time.AfterFunc(c.timeout, func() { cancel(errLate) })
	response, _, err := c.send(ctx, int(at), "watch", body)
	if err == nil {
		lines := bufio.NewReaderSize(response.Body, 4<<10)
		w := &Watch{client: c, at: at, body: response.Body, lines: lines, stop: stop, began: time.Now()}
		var first WatchResponse
		if first, err = w.Next(); err == nil && late.Stop() && first.Created {
			if first.Canceled { // etcd tells of an error in this way, too
				w.first = &first
				c.forgetOld(first.Reason)
			}
			return w, nil
		}
		if err == nil {
			err = fmt.Errorf("%s does not begin a watch: %.300q", c.config.Endpoints[at], first.Reason)
		}
		response.Body.Close()
	}
	late.Stop()
	stop()
	c.next(at)
	return nil, err
}

// Next returns the next changes.
func (w *Watch) Next() (WatchResponse, error) {
	if first := w.first; first != nil {
		w.first = nil
		return *first, nil
	}
	var line []byte
	w.heard.Store(int64(time.Since(w.began)))
	for {
		part, err := w.lines.ReadSlice('\n')
		w.heard.Store(int64(time.Since(w.began)))
		if len(line)+len(part) > maxEvents {
			return WatchResponse{}, tooLong(w.client.config.Endpoints[w.at], maxEvents)
		}
		line = append(line, part...)
		if err == nil {
			w.heard.Store(-1)
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return WatchResponse{}, fmt.Errorf("%s: the watch has ended: %w", w.client.config.Endpoints[w.at], err)
		}
	}
	var answer struct {
		Result WatchResponse `json:"result"`
		Error  *Error        `json:"error"`
	}
	if err := json.Unmarshal(line, &answer); err != nil {
		return WatchResponse{}, w.client.garbage(int(w.at), err)
	}
	if answer.Error != nil {
		return WatchResponse{}, answer.Error
	}
	return answer.Result, nil
}

// Close ends the watch. With away, the next request asks another endpoint.
func (w *Watch) Close(away bool) {
	w.stop()
	w.body.Close()
	if away {
		w.client.next(w.at)
	}
}
