package handlers

import (
	"context"
	"errors"
	"net/http"
	"time"

	"taskapi/handlers/apierror"
)

const (
	// bulkyBytes is how much memory the long answers and bodies of all sockets may take together. What else the
	// connections take is bounded by their number.
	bulkyBytes = 32 << 20
	// shortBytes is the length up to which an answer, a frame or a body does not count.
	shortBytes = 16 << 10
)

// bulkyWait is how long a request waits for memory: longer than the time that a client has to read its answer.
const bulkyWait = writeTimeout + 5*time.Second

// errBulkyWait is the cause when bulkyWait is over.
var errBulkyWait = errors.New("there was no memory for a long answer")

// ended is a context that has ended.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// reserveNow reserves so many bytes of memory until the answer is sent, if they are free. The request first gives back
// what it has reserved before: no request that waits holds memory.
func (r *request) reserveNow(bytes int) (ok bool) {
	r.held.Keep(0)
	held, err := r.server.share.Hold(ended, bytes)
	r.held = held
	return err == nil
}

// reserve is reserveNow, but waits until the bytes are free, and reports whether it had to. Errors: TooManyBulky when
// bulkyWait is over; CutOff when the server stops; *auth.Denial when the token is not valid any more; ctx's.
func (r *request) reserve(ctx context.Context, bytes int) (waited bool, err error) {
	if r.reserveNow(bytes) {
		return false, nil
	}
	s := r.server
	ctx, cancel := context.WithTimeoutCause(ctx, bulkyWait, errBulkyWait)
	defer cancel()
	defer context.AfterFunc(s.draining, cancel)()
	r.held, err = s.share.Hold(ctx, bytes)
	switch {
	case err == nil:
		return true, r.recheck()
	case s.draining.Err() != nil:
		return true, apierror.New(apierror.CutOff)
	case context.Cause(ctx) == errBulkyWait: //nolint:errorlint // it is never wrapped
		full := apierror.New(apierror.TooManyBulky, bulkyBytes>>20)
		full.RetryAfter = max(time.Second, time.Until(s.budget.Oldest().Add(bulkyWait))) // that request is cut off by then
		return true, full
	}
	return true, err
}

// giveBack gives back what the request has reserved.
func (r *request) giveBack() {
	if r.held.Bytes() > 0 {
		r.held.Keep(0)
		r.server.config.Eased()
	}
}

// reserveBody reserves memory for a body before it is read, and so many bytes for an answer that shows what there is.
// If the client goes during the wait, nothing is done. Errors: those of reserve.
func (r *request) reserveBody(answer int) error {
	length := int(r.matched.bodyLimit())
	if r.ContentLength >= 0 {
		length = min(length, int(r.ContentLength))
	}
	if length+answer <= shortBytes {
		return nil
	}
	waited, err := r.reserve(r.Context(), 3*length+answer) // as read, and twice while it is decoded
	if waited {
		r.renewBodyTime()
	}
	return err
}

// enterMaking waits for the turn of a request whose answer has an unknown length: a socket makes one such answer at a
// time, until its handler returns. If the route's latest answer on the socket was long, enterMaking first waits for as
// much memory, since an answer made in vain is costly. A handler that waits for something else calls it after that.
// Errors: those of reserve.
func (r *request) enterMaking(ctx context.Context) error {
	s := r.server
	if bytes, ok := s.long.Load(r.matched); ok && r.held.Bytes() == 0 {
		if _, err := r.reserve(ctx, bytes.(int)); err != nil {
			return err
		}
	}
	select {
	case s.making <- struct{}{}:
		r.making = true
		return nil
	case <-s.draining.Done():
		return apierror.New(apierror.CutOff)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *request) leaveMaking() {
	if r.making {
		r.making = false
		<-r.server.making
	}
}

// handle calls the route's handler. A long answer for which there is no memory is dropped, and made again once there
// is.
func (s *socketServer) handle(ctx context.Context, r *request) (answer, error) {
	for {
		result, err := s.handleOnce(ctx, r)
		if err == nil && result.body != nil && r.pretty() {
			result.body = result.body.pretty()
		}
		bytes := result.body.size()
		again := r.Method == http.MethodGet || r.Method == http.MethodHead // what may have changed something is sent as it is
		if bytes > shortBytes {
			s.long.Store(r.matched, bytes)
		} else if r.held.Bytes() > 0 {
			s.long.Delete(r.matched)
		}
		if err != nil || !again || bytes <= max(shortBytes, r.held.Bytes()) {
			r.held.Keep(bytes)
			return result, err
		}
		if r.reserveNow(bytes) {
			return result, nil
		}
		result = answer{} //nolint:wastedassign // so that it takes no memory while the request waits
		if _, err := r.reserve(ctx, bytes); err != nil {
			return answer{}, err
		}
	}
}

func (s *socketServer) handleOnce(ctx context.Context, r *request) (answer, error) {
	defer r.leaveMaking()
	if r.matched.bulky {
		if err := r.enterMaking(ctx); err != nil {
			return answer{}, err
		}
	}
	return r.matched.handle(ctx, r)
}
