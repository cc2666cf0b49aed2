// Package proxy passes HTTP requests on to the API socket of an allocation, for clients that can't use Unix sockets. It
// adds no credentials: every request needs a token, as on the socket itself.
package proxy

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"sync/atomic"
	"time"

	"taskapi/cmd/taskapi/internal/httpserve"
	"taskapi/socket"
)

// MaxConns is how many clients may be connected, as many as to an API socket.
const MaxConns = 256

// The bounds of connections to the socket. The API keeps idle ones longer, so that no request is sent on one that it is
// just closing.
const (
	dialTime    = 5 * time.Second
	maxIdle     = 32
	maxIdleTime = 30 * time.Second
)

// restTime is how long a client may take for the rest of a body after the API has answered.
const restTime = time.Second

// apiHost is the host of rewritten requests.
const apiHost = "taskapi"

// Config says what is served where.
type Config struct {
	Listener *httpserve.Listener
	Socket   string // absolute path of the API socket
	Local    bool   // only requests that name this machine are passed on: see httpserve.NamesThisMachine
	Users    []int  // only their processes and root's get an answer over TCP; nil for those of any user
	Logger   *slog.Logger
}

// Serve passes requests on until ctx ends. Requests without end, such as event streams, end with it.
func Serve(ctx context.Context, c Config) error {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTime)
			defer cancel()
			return socket.Dial(ctx, c.Socket)
		},
		DisableCompression: true, // the client decides
		MaxIdleConns:       maxIdle, MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: maxIdleTime,
	}
	defer transport.CloseIdleConnections()
	pass := &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1, // lines of a stream as they come
		ErrorLog:      slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", apiHost, apiHost
			r.Out.URL.RawQuery = r.In.URL.RawQuery // the API says what is wrong with it
		},
		ModifyResponse: func(r *http.Response) error {
			bodyOf(r.Request).answered()
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.URL.Host != apiHost || bodyOf(r).failed.Load() { // the client is at fault
				http.Error(w, "the taskapi proxy can't read the request: "+err.Error(), http.StatusBadRequest)
				return
			}
			if r.Context().Err() == nil { // else the client has gone
				c.Logger.WarnContext(r.Context(), "the API does not answer", "socket", c.Socket, "error", err)
			}
			w.Header().Set("Retry-After", "1")
			http.Error(w, fmt.Sprintf("the taskapi proxy gets no answer from %s: its allocation has ended, or its taskapi is "+
				"starting; try again", c.Socket), http.StatusServiceUnavailable)
		},
	}
	server := &http.Server{
		BaseContext: func(net.Listener) context.Context { return ctx },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if c.Local && !httpserve.NamesThisMachine(r.Host) {
				http.Error(w, "this proxy is for this machine: name it by an IP address, or as localhost",
					http.StatusMisdirectedRequest)
				return
			}
			if c.Users != nil && !httpserve.OfUser(r, c.Users) {
				http.Error(w, "this proxy is for the processes of the user who started it, and of root; with --any-user, it "+
					"serves all users", http.StatusForbidden)
				return
			}
			if len(r.TransferEncoding) > 0 { // with a Content-Length, which net/http hides, others may read other requests
				w.Header().Set("Connection", "close")
			}
			sent := &body{ReadCloser: r.Body, client: http.NewResponseController(w), whole: r.ContentLength == 0}
			r.Body = sent
			pass.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), bodyKey{}, sent)))
		}),
	}
	return c.Listener.Serve(ctx, server, c.Logger)
}

// body is the body of a client's request.
type body struct {
	io.ReadCloser
	client *http.ResponseController
	failed atomic.Bool // it broke off or can't be read
	mu     sync.Mutex  // guards the field below, and is held while the client's deadline is set
	whole  bool        // all of it was read
}

// bodyKey is the key of a request's body in its context, because ReverseProxy wraps the body.
type bodyKey struct{}

func bodyOf(r *http.Request) *body { return r.Context().Value(bodyKey{}).(*body) }

// Read reads from the client.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == io.EOF:
		b.mu.Lock()
		defer b.mu.Unlock()
		b.whole = true
		_ = b.client.SetReadDeadline(time.Time{})
	case err != nil:
		b.failed.Store(true)
	}
	return n, err
}

// answered bounds the time for the rest of the body, which net/http reads before it sends the answer.
func (b *body) answered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.whole {
		_ = b.client.SetReadDeadline(time.Now().Add(restTime))
	}
}
