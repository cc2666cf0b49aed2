package upstream

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"

	"taskapi/auth"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/transport"
)

// passedNames are the request's headers that the agent gets. Nomad reads no others, and none of these says where a body
// or a connection ends: net/http writes that.
var passedNames = []string{"Accept", "Accept-Encoding", "Authorization", "Content-Encoding", "Content-Type",
	"User-Agent", "X-Nomad-Token"}

// upgradeNames are those of a request that begins a command.
var upgradeNames = []string{"Connection", "Upgrade", "Sec-Websocket-Key", "Sec-Websocket-Version",
	"Sec-Websocket-Protocol", "Sec-Websocket-Extensions"}

// requestKey is the key of a *request in the context of its copy for the agent.
type requestKey struct{}

func requestOf(r *http.Request) *request { return r.Context().Value(requestKey{}).(*request) }

func (s *Server) newProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:     once{s.config.Agent.passing},
		FlushInterval: -1, // each write at once
		ErrorLog:      slog.NewLogLogger(s.config.Logger.Handler(), slog.LevelDebug),
		Rewrite: func(p *httputil.ProxyRequest) {
			from, to := p.In, p.Out
			header := http.Header{"User-Agent": {""}} // none of net/http's own
			for _, name := range passedNames {        // also one that the client's Connection header names
				if values := from.Header[name]; len(values) > 0 {
					header[name] = values
				}
			}
			if isCommand(from.URL.Path) && to.Header.Get("Upgrade") == "websocket" {
				for _, name := range upgradeNames {
					if values := to.Header[name]; len(values) > 0 {
						header[name] = values
					}
				}
			}
			to.Header, to.Trailer = header, nil
			to.URL.Scheme, to.URL.Host, to.URL.User = s.config.Agent.Address.scheme, s.config.Agent.Address.host, nil
			to.URL.RawQuery, to.URL.Opaque, to.Host = from.URL.RawQuery, "", ""
		},
		ModifyResponse: func(response *http.Response) error {
			r := requestOf(response.Request)
			if response.StatusCode != http.StatusSwitchingProtocols {
				if err := checkStatus(response.StatusCode); err != nil {
					return err
				}
			}
			r.status = response.StatusCode
			r.changed(r.status) // before the client sees the answer
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, out *http.Request, err error) {
			r := requestOf(out)
			if r.sent.Load() {
				r.changed(http.StatusBadGateway)
			}
			s.config.Logger.Debug("a request was not answered", "method", r.Method, "path", r.path, "error", err)
			r.status = failWith(w, r.lost(err))
		},
	}
}

// changed makes reads wait for newer answers after a change that the agent has answered with the status. After a
// change that was made, these are all reads. After one that may have been made, or that has collided with another,
// they are the reads on the same socket. A refused change costs its caller nothing, so it makes no reader wait.
func (r *request) changed(status int) {
	switch {
	case !r.change:
	case status < http.StatusMultipleChoices:
		r.cache.epoch.Add(1)
	case status >= http.StatusInternalServerError, status == http.StatusConflict:
		r.cache.own.Add(1)
	}
}

// lost returns the error of a request that the agent has not answered. It says of a change whether it may have been
// made.
func (r *request) lost(err error) error {
	if long, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return apierror.New(apierror.BodyTooLarge, long.Limit)
	}
	denial, ended := errors.AsType[*auth.Denial](context.Cause(r.Context()))
	switch {
	case ended && (!r.change || !r.sent.Load()): // a refusal would say that nothing was changed
		return denial
	case !r.sent.Load():
		return unavailable("the agent can't be reached; nothing was sent")
	case r.change:
		return apierror.New(apierror.BadGateway)
	}
	return unavailable("the agent's answer was lost")
}

// once sends each change at most once. net/http sends a GET again when the agent has closed the connection that the GET
// was sent on, and a GET may be a change.
type once struct{ *http.Transport }

func (t once) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body == nil && requestOf(r).change {
		r.Body = struct{ io.ReadCloser }{http.NoBody} // a body that can't be had again; none is sent
	}
	return t.Transport.RoundTrip(r)
}

// pass sends the request to the agent and its answer to the client, as both come.
func (s *taskSocket) pass(r *request) {
	if r.conn.HandBack() {
		return
	}
	if s.streams.Add(1) > int64(s.config.Limits.Streams) {
		s.streams.Add(-1)
		fail(r.w, later(apierror.TooManyStreams, s.config.Limits.Streams))
		return
	}
	defer s.streams.Add(-1)
	if r.change {
		if err := s.begin(r); err != nil {
			failWith(r.w, err)
			return
		}
	}
	ctx, end := context.WithCancelCause(context.WithValue(r.Context(), requestKey{}, r))
	defer end(nil)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { r.sent.Store(true) },
	})
	recheck := s.recheckOf(r) // the connection may outlive this call
	defer context.AfterFunc(s.Draining, func() {
		if !r.change || isCommand(r.URL.Path) { // a change has the time that the server leaves it
			end(nil)
		}
	})()
	defer r.conn.Lasting(recheck, end)()
	r.Request = r.WithContext(ctx)
	r.conn.Upgrading(recheck)
	defer func() { s.recordDone(r, r.status) }() // also when the proxy cuts off an answer that breaks
	s.proxy.ServeHTTP(&frames{ResponseWriter: r.w, conn: r.conn, recheck: recheck}, r.Request)
}

// begin waits for the turn of a change, and records that it is about to be made.
func (s *taskSocket) begin(r *request) error {
	if s.config.Auditor == nil {
		return nil
	}
	if !s.changes.Allow() {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(s.Draining, cancel)()
		if s.changes.Wait(ctx) != nil {
			return apierror.New(apierror.CutOff)
		}
		transport.RenewBodyTime(r.w, r.Request)
	}
	if err := s.config.Auditor.Begin(s.record(r, 0)); err != nil {
		return apierror.New(apierror.Unavailable, err)
	}
	return nil
}

// frames is the answer to a client. Each write is a frame: it waits for its turn among busy sockets, needs a token that
// is still good, and has the time of an answer.
type frames struct {
	http.ResponseWriter
	conn    *transport.Conn
	recheck func() error
}

func (f *frames) Write(p []byte) (int, error) {
	f.conn.AwaitTurn(len(p))
	if err := f.recheck(); err != nil {
		return 0, err
	}
	f.conn.Writing()
	defer f.conn.Serving()
	return f.ResponseWriter.Write(p)
}

// WriteHeader leaves out what comes before an answer: Nomad sends none, and it would have no time limit.
func (f *frames) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		f.ResponseWriter.WriteHeader(status)
	}
}

// Unwrap gives net/http's controller the connection, to flush it or to take it over.
func (f *frames) Unwrap() http.ResponseWriter { return f.ResponseWriter }
