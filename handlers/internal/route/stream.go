package route

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"taskapi/handlers/apierror"
)

// HeartbeatEvery is Nomad's.
const HeartbeatEvery = 10 * time.Second

// ErrDraining ends streams when the server stops.
var ErrDraining = errors.New("the server stops")

// enterStream takes a place among the socket's streams until leave is called. Streams may last for ever, and other
// requests need connections, too. Without a place, it releases what the answer holds, as leave does. Errors:
// TooManyStreams.
func (s *socket) enterStream(a Answer) (leave func(), err error) {
	leave = func() {
		s.streams.Add(-1)
		if a.Release != nil {
			a.Release()
		}
	}
	if s.streams.Add(1) > int64(s.limits.Streams) {
		leave()
		return nil, apierror.New(apierror.TooManyStreams, s.limits.Streams)
	}
	return leave, nil
}

// whileAuthorized calls run with a context that ends when the request's token is not valid any more, with a
// *auth.Denial as its cause, and when the server stops, with ErrDraining. The token is looked at every second.
func (r *Request) whileAuthorized(parent context.Context, run func(ctx context.Context)) {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	defer context.AfterFunc(r.socket.Draining, func() { cancel(ErrDraining) })()
	defer r.conn.Lasting(r.forRecheck().recheck, cancel)()
	run(ctx)
}

// forRecheck returns a copy of the request for recheck. The copy stays as it is when the handler has returned. Its
// context has ended, so recheck decides at once: it delays no refusal.
func (r *Request) forRecheck() *Request {
	ended, end := context.WithCancel(r.Context())
	end()
	return &Request{Request: r.WithContext(ended), Principal: r.Principal, conn: r.conn, socket: r.socket}
}

// StreamWriter sends the frames of a stream. Each frame waits for its turn among busy sockets and for a token that is
// still valid, and the client has the time of an answer to take it. Between frames a stream may rest as long as it
// likes.
type StreamWriter struct{ request *Request }

// Write sends a frame at once. Its error is a *auth.Denial, or says that the client has gone away or has not read for
// too long.
func (o *StreamWriter) Write(p []byte) (int, error) {
	if err := o.send(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

var newline = []byte("\n")

// Line sends one line at once, with the errors of Write.
func (o *StreamWriter) Line(line []byte) error { return o.send(line, newline) }

func (o *StreamWriter) send(parts ...[]byte) error {
	o.request.conn.AwaitTurn(len(parts[0]))
	return o.sendNow(parts...)
}

var heartbeat = []byte("{}")

// Heartbeat sends an empty object, without waiting for a turn: an idle stream does not put its socket to use.
func (o *StreamWriter) Heartbeat() error { return o.sendNow(heartbeat, newline) }

func (o *StreamWriter) sendNow(parts ...[]byte) error {
	if err := o.request.recheck(); err != nil { // for each frame: a slow reader draws them out
		return err
	}
	return o.Flush(parts...)
}

// The last lines of streams that the server ends.
const (
	EndSlowConsumer = "events were lost, because they were not read in time: connect again"
	EndDraining     = "the server stops, and there was more: connect again"
	EndUnauthorized = "the token is not valid any more: connect again with a new one"
)

// Reserve is Request.Reserve for a long frame, until giveBack is called.
func (o *StreamWriter) Reserve(bytes int) (giveBack func(), err error) {
	_, err = o.request.Reserve(o.request.Context(), bytes)
	return func() { o.request.held.keep(0) }, err
}

// LastWords says why a stream ends, also to a client whose token is not valid any more, if it is still there.
func (o *StreamWriter) LastWords(why string) { _ = o.Flush(errorLine(why), newline) }

// Say tells people something. Programs take the line for a heartbeat.
func (o *StreamWriter) Say(what string) error { return o.Line(errorLine(what)) }

func errorLine(what string) []byte {
	line, _ := json.Marshal(struct{ Error string }{what}) // text can always be encoded
	return line
}

// Flush sends the parts, and the head if it has not left, without a turn and without looking at the token.
func (o *StreamWriter) Flush(parts ...[]byte) error {
	o.request.conn.Writing()
	defer o.request.conn.Serving()
	for _, part := range parts {
		if _, err := o.request.w.Write(part); err != nil {
			return err
		}
	}
	return http.NewResponseController(o.request.w).Flush()
}

// stream answers with what the handler writes as it comes, and returns the status.
func (s *socket) stream(ctx context.Context, r *Request, result Answer) int {
	leave, err := s.enterStream(result)
	if err != nil {
		return s.fail(r, err)
	}
	defer leave()
	if r.conn.HandBack() {
		return 0
	}
	r.w.Header()["Content-Type"] = result.ContentType
	if result.NoSniff {
		r.w.Header()["X-Content-Type-Options"] = noSniffHeader
	}
	if r.Principal.Operator() { // tasks might open many streams, and not read them
		r.conn.Widen()
	}
	s.recordRead(r, http.StatusOK)
	r.w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		r.whileAuthorized(ctx, func(ctx context.Context) {
			result.Stream(ctx, &StreamWriter{r})
		})
	}
	return http.StatusOK
}

// upgrade lets the handler take the connection, by http.Hijacker, and closes it when the token is not valid any more or
// the server stops. It returns the status: 101 when the connection was taken.
func (s *socket) upgrade(ctx context.Context, r *Request, result Answer) int {
	leave, err := s.enterStream(result)
	if err != nil {
		return s.fail(r, err)
	}
	defer leave()
	conn := r.conn
	conn.Upgrading(r.forRecheck().recheck) // the connection outlives r
	r.whileAuthorized(ctx, func(ctx context.Context) {
		closed := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			if result.Farewell != nil {
				result.Farewell(context.Cause(ctx))
			}
			_ = conn.Close() // a read or a write that is under way fails
			close(closed)
		})
		defer func() {
			if !stop() {
				<-closed
			}
		}()
		err = result.Upgrade(ctx, r.w)
	})
	if !conn.Upgraded() {
		return s.fail(r, err)
	}
	s.recordRead(r, http.StatusSwitchingProtocols)
	return http.StatusSwitchingProtocols
}
