package handlers

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"taskapi/auth"
	"taskapi/handlers/apierror"
)

// recheckEvery is how often the token of a stream is looked at while nothing is written.
const recheckEvery = 10 * time.Second

// errDraining ends streams when the server stops.
var errDraining = errors.New("the server stops")

// enterStream takes a place among the socket's streams until leave is called. They may last for ever, and other requests need connections, too.
// Its error is TooManyStreams.
func (s *socketServer) enterStream() (leave func(), err error) {
	leave = func() { s.streams.Add(-1) }
	if s.streams.Add(1) > int64(s.limits.Streams) {
		leave()
		return nil, apierror.New(apierror.TooManyStreams, s.limits.Streams)
	}
	return leave, nil
}

// whileAuthorized calls run with a context that ends when the request's token is not valid any more, with a *auth.Denial as its cause, and
// when the server stops, with errDraining. The token is looked at every ten seconds and when it expires.
func (r *request) whileAuthorized(parent context.Context, run func(ctx context.Context)) {
	var watch sync.WaitGroup
	defer watch.Wait()
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	defer context.AfterFunc(r.server.draining, func() { cancel(errDraining) })()
	watch.Go(func() {
		tick := time.NewTicker(recheckEvery)
		defer tick.Stop()
		expiry := time.NewTimer(time.Until(time.Unix(r.Principal.Claims.ExpiresAt, 0)))
		defer expiry.Stop()
		for {
			select {
			case <-tick.C:
			case <-expiry.C:
			case <-ctx.Done():
				return
			}
			if err := r.recheck(); err != nil {
				cancel(err)
				return
			}
		}
	})
	run(ctx)
}

// streamWriter is what a stream's frames leave through. Each waits for its turn among busy sockets and for a token that is still valid, and
// has the time of an answer to leave; between them a stream may rest as long as it likes.
type streamWriter struct {
	request *request
	conn    *connection
}

// Write sends a frame at once. An error is a *auth.Denial, or the client's having gone away or not reading for too long.
func (o *streamWriter) Write(p []byte) (int, error) {
	if err := o.send(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

var newline = []byte("\n")

// line sends one line at once, with the errors of Write.
func (o *streamWriter) line(line []byte) error { return o.send(line, newline) }

func (o *streamWriter) send(parts ...[]byte) error {
	o.conn.awaitTurn(len(parts[0]))
	return o.sendNow(parts...)
}

// heartbeat sends a line without waiting for a turn: by its heartbeats an idle stream does not put its socket to use.
func (o *streamWriter) heartbeat(line []byte) error { return o.sendNow(line, newline) }

func (o *streamWriter) sendNow(parts ...[]byte) error {
	if err := o.request.recheck(); err != nil { // for each frame: a slow reader draws them out
		return err
	}
	return o.flush(parts...)
}

// lastLine sends the line that says why a stream ends, also to a client whose token is not valid any more, if it is still there.
func (o *streamWriter) lastLine(line []byte) { _ = o.flush(line, newline) }

func (o *streamWriter) flush(parts ...[]byte) error {
	o.conn.enter(writing)
	defer o.conn.enter(serving)
	for _, part := range parts {
		if _, err := o.request.w.Write(part); err != nil {
			return err
		}
	}
	return http.NewResponseController(o.request.w).Flush()
}

// stream answers with what the handler writes as it comes, and returns the status.
func (s *socketServer) stream(ctx context.Context, r *request, result answer) int {
	if result.release != nil {
		defer result.release()
	}
	leave, err := s.enterStream()
	if err != nil {
		return s.fail(r, err)
	}
	defer leave()
	r.w.Header()["Content-Type"] = result.contentType
	if result.noSniff {
		r.w.Header()["X-Content-Type-Options"] = noSniffHeader
	}
	s.recordRead(r, http.StatusOK)
	r.w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		r.whileAuthorized(ctx, func(ctx context.Context) {
			result.stream(ctx, &streamWriter{r, connectionOf(r.Context())})
		})
	}
	return http.StatusOK
}

// denied reports whether a stream ended because its token is not valid any more.
func denied(err error) bool {
	_, denied := errors.AsType[*auth.Denial](err)
	return denied
}
