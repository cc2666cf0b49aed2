package route

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"

	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/transport"
)

// The memory of answers, frames and bodies that are longer than ShortBytes. The number of connections bounds the memory
// of the others.
const (
	ShortBytes  = 16 << 10
	ownBytes    = 512 << 10 // of each socket: nobody can keep another from an answer of modest length
	sharedBytes = 24 << 20  // of all sockets together
)

// memoryWait is how long a request waits for memory: longer than the time that a client has to read its answer.
const memoryWait = transport.WriteTimeout + 5*time.Second

// errMemoryWait is the cause when memoryWait is over.
var errMemoryWait = errors.New("there was no memory for a long answer")

// hold is memory that a request holds.
type hold struct {
	of    *semaphore.Weighted
	bytes int
}

// keep gives back all but that many bytes.
func (h *hold) keep(bytes int) {
	if bytes < h.bytes {
		h.of.Release(int64(h.bytes - bytes))
		h.bytes = bytes
	}
}

// reserveNow reserves bytes of memory until the answer is sent, if they are free. The request first gives back
// what it has reserved before: no request that waits holds memory.
func (r *Request) reserveNow(bytes int) (ok bool) {
	r.held.keep(0)
	for _, of := range []*semaphore.Weighted{r.socket.own, r.socket.shared} {
		if of.TryAcquire(int64(bytes)) {
			r.held = hold{of, bytes}
			return true
		}
	}
	return false
}

// Reserve is reserveNow, but waits until the bytes are free, and reports whether it had to. A request that fits into
// its socket's own memory waits for that alone. Of the others, one of each socket waits, in the order in which they
// came. An answer that is longer than all shared memory takes it all. Errors: those of awaitMemory.
func (r *Request) Reserve(ctx context.Context, bytes int) (waited bool, err error) {
	bytes = min(bytes, sharedBytes)
	if r.reserveNow(bytes) {
		return false, nil
	}
	return true, r.awaitMemory(ctx, func(ctx context.Context) error {
		of := r.socket.own
		if bytes > ownBytes {
			of = r.socket.shared
			if !r.making {
				if err := r.socket.making.Acquire(ctx, 1); err != nil {
					return err
				}
				defer r.socket.making.Release(1)
			}
		}
		if err := of.Acquire(ctx, int64(bytes)); err != nil {
			return err
		}
		r.held = hold{of, bytes}
		return nil
	})
}

// awaitMemory calls wait with a context that ends when memoryWait is over. Errors: TooManyBulky then; those of Await.
func (r *Request) awaitMemory(ctx context.Context, wait func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, memoryWait, errMemoryWait)
	defer cancel()
	err := r.Await(ctx, wait)
	if errors.Is(err, context.DeadlineExceeded) && errors.Is(context.Cause(ctx), errMemoryWait) {
		full := apierror.New(apierror.TooManyBulky, sharedBytes>>20)
		full.RetryAfter = transport.WriteTimeout // what is sent now has been sent or cut off by then
		return full
	}
	return err
}

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
// time, until there is memory for it. A handler that waits for something else calls EnterMaking after that. Errors:
// those of awaitMemory.
func (r *Request) EnterMaking(ctx context.Context) error {
	if r.making || r.socket.making.TryAcquire(1) {
		r.making = true
		return nil
	}
	return r.awaitMemory(ctx, func(ctx context.Context) error {
		err := r.socket.making.Acquire(ctx, 1)
		r.making = err == nil
		return err
	})
}

// handle calls the route's handler. A long answer to a read is sent when there is memory for it. If there is none, and
// the request has not entered making, its answer is made again when it has.
func (s *socket) handle(ctx context.Context, r *Request) (Answer, error) {
	defer func() {
		if r.making {
			r.making = false
			s.making.Release(1)
		}
	}()
	for {
		result, err := r.matched.handle(ctx, r)
		if err == nil && result.Body != nil && r.pretty() {
			result.Body = result.Body.pretty()
		}
		bytes := min(result.Body.size(), sharedBytes)
		read := r.Method == http.MethodGet || r.Method == http.MethodHead // the answer to a change is sent as it is
		if err != nil || !read || bytes <= max(ShortBytes, r.held.bytes) {
			r.held.keep(bytes)
			return result, err
		}
		if r.making {
			_, err := r.Reserve(ctx, bytes)
			return result, err
		}
		if r.reserveNow(bytes) {
			return result, nil
		}
		result = Answer{} //nolint:wastedassign // so that it takes no memory while the request waits
		if err := r.EnterMaking(ctx); err != nil {
			return Answer{}, err
		}
	}
}
