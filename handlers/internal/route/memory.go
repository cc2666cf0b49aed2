package route

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/transport"
)

const (
	// bulkyBytes is how much memory the long answers and bodies of all sockets may take together. The number of
	// connections bounds their other memory.
	bulkyBytes = 32 << 20
	// ShortBytes is the length up to which an answer, a frame or a body does not count.
	ShortBytes = 16 << 10
)

// bulkyWait is how long a request waits for memory: longer than the time that a client has to read its answer.
const bulkyWait = transport.WriteTimeout + 5*time.Second

// errBulkyWait is the cause when bulkyWait is over.
var errBulkyWait = errors.New("there was no memory for a long answer")

// ended is a context that has ended.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// reserveNow reserves bytes of memory until the answer is sent, if they are free. The request first gives back
// what it has reserved before: no request that waits holds memory.
func (r *Request) reserveNow(bytes int) (ok bool) {
	r.held.Keep(0)
	held, err := r.socket.share.Hold(ended, bytes)
	r.held = held
	return err == nil
}

// Reserve is reserveNow, but waits until the bytes are free, and reports whether it had to. Errors: TooManyBulky when
// bulkyWait is over; those of Await; ctx's.
func (r *Request) Reserve(ctx context.Context, bytes int) (waited bool, err error) {
	if r.reserveNow(bytes) {
		return false, nil
	}
	s := r.socket
	ctx, cancel := context.WithTimeoutCause(ctx, bulkyWait, errBulkyWait)
	defer cancel()
	err = r.Await(ctx, func(ctx context.Context) (err error) {
		r.held, err = s.share.Hold(ctx, bytes)
		return err
	})
	if errors.Is(err, context.DeadlineExceeded) && errors.Is(context.Cause(ctx), errBulkyWait) {
		full := apierror.New(apierror.TooManyBulky, bulkyBytes>>20)
		full.RetryAfter = max(time.Second, time.Until(s.budget.Oldest().Add(bulkyWait))) // that request is cut off by then
		return true, full
	}
	return true, err
}

func (r *Request) giveBack() { r.held.Keep(0) }

// ReserveBody reserves memory for a body before it is read, and answer bytes for an answer that shows the object.
// If the client goes during the wait, nothing is done. Errors: those of Reserve.
func (r *Request) ReserveBody(answer int) error {
	length := int(cmp.Or(r.matched.maxBody, transport.MaxBody))
	if r.ContentLength >= 0 {
		length = min(length, int(r.ContentLength))
	}
	if length+answer <= ShortBytes {
		return nil
	}
	waited, err := r.Reserve(r.Context(), 3*length+answer) // as read, and twice while it is decoded
	if waited {
		transport.RenewBodyTime(r.w, r.Request)
	}
	return err
}

// EnterMaking waits for the turn of a request whose answer has an unknown length: a socket makes one such answer at a
// time, until its handler returns. If the route's latest answer on the socket was long, EnterMaking first waits for as
// much memory, since an answer made in vain is costly. A handler that waits for something else calls it after that.
// Errors: those of Reserve.
func (r *Request) EnterMaking(ctx context.Context) error {
	s := r.socket
	if bytes, ok := s.long.Load(r.matched); ok && r.held.Bytes() == 0 {
		if _, err := r.Reserve(ctx, bytes.(int)); err != nil {
			return err
		}
	}
	err := r.TakeTurn(ctx, s.making)
	r.making = err == nil
	return err
}

// handle calls the route's handler. A long answer for which there is no memory is dropped, and made again once there
// is.
func (s *socket) handle(ctx context.Context, r *Request) (Answer, error) {
	for {
		result, err := s.handleOnce(ctx, r)
		if err == nil && result.Body != nil && r.pretty() {
			result.Body = result.Body.pretty()
		}
		bytes := result.Body.size()
		again := r.Method == http.MethodGet || r.Method == http.MethodHead // the answer to a change is sent as it is
		if bytes > ShortBytes {
			s.long.Store(r.matched, bytes)
		} else if r.held.Bytes() > 0 {
			s.long.Delete(r.matched)
		}
		if err != nil || !again || bytes <= max(ShortBytes, r.held.Bytes()) {
			r.held.Keep(bytes)
			return result, err
		}
		if r.reserveNow(bytes) {
			return result, nil
		}
		result = Answer{} //nolint:wastedassign // so that it takes no memory while the request waits
		if _, err := r.Reserve(ctx, bytes); err != nil {
			return Answer{}, err
		}
	}
}

func (s *socket) handleOnce(ctx context.Context, r *Request) (Answer, error) {
	defer func() {
		if r.making {
			r.making = false
			s.making.Leave()
		}
	}()
	return r.matched.handle(ctx, r)
}
