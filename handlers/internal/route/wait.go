package route

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"taskapi/handlers/apierror"
)

// How long a blocking query waits, as in Nomad's documentation.
const (
	defaultWait = 5 * time.Minute
	maxWait     = 10 * time.Minute
)

// AwaitChange waits, when the query has an index, from that index on until something has changed, as until does. The
// context of until ends when the wait is over, the client has gone, the token is not valid any more or the server
// drains. It does not wait when now is a later index. Errors: those of the query, of Await and of until, but not the
// end of the wait; TooManyWaits.
func (r *Request) AwaitChange(
	ctx context.Context, now uint64, until func(ctx context.Context, after uint64) error,
) error {
	after, wait, err := blocking(r.Query())
	if err != nil || after == 0 || now > after || r.waited {
		return err
	}
	r.waited = true
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	leave, err := r.socket.waits.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return r.Await(ctx, func(ctx context.Context) error {
		err := until(ctx, after)
		if ctx.Err() != nil { // the wait is over
			err = nil
		}
		return err
	})
}

// Await calls wait with a context that ends when the token is not valid any more and when the server stops. Errors:
// *auth.Denial when the token has become invalid meanwhile, CutOff for an error of wait when the server stops, wait's.
func (r *Request) Await(ctx context.Context, wait func(ctx context.Context) error) (err error) {
	var why error // of the context's end
	r.whileAuthorized(ctx, func(ctx context.Context) {
		err = wait(ctx)
		why = context.Cause(ctx)
	})
	if Denied(why) {
		return why
	}
	if denied := r.recheck(); denied != nil {
		return denied
	}
	if err != nil && errors.Is(why, ErrDraining) {
		return apierror.New(apierror.CutOff)
	}
	return err
}

// Constant returns a handler that answers with a value that never changes: a query with an index waits in vain.
func Constant(value any) Handler {
	return Unchanging(func(*Request) (Answer, error) { return Respond(value) })
}

// Missing returns a handler for an object that never exists.
func Missing(kind apierror.Kind) Handler {
	return Unchanging(func(*Request) (Answer, error) { return Answer{}, apierror.New(kind) })
}

// OrNone returns a handler that lists nothing of an object that does not exist, as Nomad does.
func OrNone(list Handler) Handler {
	return func(ctx context.Context, r *Request) (Answer, error) {
		answer, err := list(ctx, r)
		if known, ok := errors.AsType[*apierror.Error](err); !ok || !known.Kind.Waitable() {
			return answer, err
		}
		if alloc, ok := r.Visible(); ok {
			if _, err := r.Snapshot(ctx, alloc); err != nil { // waits for a change
				return Answer{}, err
			}
		}
		return Shared([]any{}, r.Index())
	}
}

// Unchanging returns a handler that gives each question always the same answer, or the same error.
func Unchanging(answer func(*Request) (Answer, error)) Handler {
	const index = 1
	return func(ctx context.Context, r *Request) (Answer, error) {
		err := r.AwaitChange(ctx, index, func(ctx context.Context, _ uint64) error {
			<-ctx.Done()
			return nil
		})
		if err != nil {
			return Answer{}, err
		}
		a, err := answer(r)
		if known, ok := errors.AsType[*apierror.Error](err); ok && known.Kind.Waitable() {
			known.Index = index
		}
		a.Index, a.Shared = index, true
		return a, err
	}
}

// waits are the blocking queries that wait on a socket. Their number is bounded: other requests need connections,
// too. One more is refused, since a client that got an answer at once would send the same query again at once, without
// end.
type waits struct {
	most int

	mu    sync.Mutex
	until map[context.Context]time.Time // guarded by mu: when each is over at the latest
}

// enter takes a place until leave is called. Errors: TooManyWaits, with the time after which one is free.
func (w *waits) enter(ctx context.Context) (leave func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.until) >= w.most {
		full := apierror.New(apierror.TooManyWaits, w.most)
		full.RetryAfter = time.Until(slices.MinFunc(slices.Collect(maps.Values(w.until)), time.Time.Compare))
		return nil, full
	}
	if w.until == nil {
		w.until = map[context.Context]time.Time{}
	}
	w.until[ctx], _ = ctx.Deadline()
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.until, ctx)
	}, nil
}

// blocking reads index and wait. Index 0 does not wait.
func blocking(query url.Values) (index uint64, wait time.Duration, err error) {
	if index, err = IndexOf(query); err != nil {
		return 0, 0, err
	}
	wait = defaultWait
	if text := query.Get("wait"); text != "" {
		if wait, err = time.ParseDuration(text); err != nil || wait < 0 {
			return 0, 0, Invalid("wait must be a duration such as 10s or 5m, not %s", Clip(text))
		}
		if wait == 0 {
			wait = defaultWait
		}
	}
	return index, min(wait, maxWait), nil
}

// IndexOf reads index; without one it is 0.
func IndexOf(query url.Values) (uint64, error) {
	text := query.Get("index")
	if text == "" {
		return 0, nil
	}
	index, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, Invalid("index must be a whole number, as X-Nomad-Index gave it, not %s", Clip(text))
	}
	return index, nil
}

// TakeTurn waits for one unit of a semaphore. Errors: those of Await, ctx's.
func (r *Request) TakeTurn(ctx context.Context, turns *semaphore.Weighted) error {
	if turns.TryAcquire(1) {
		return nil
	}
	taken := false
	err := r.Await(ctx, func(ctx context.Context) error {
		err := turns.Acquire(ctx, 1)
		taken = err == nil
		return err
	})
	if err != nil && taken {
		turns.Release(1)
	}
	return err
}

// TakeFilters waits for the turn in which a filter is read or applied on the socket. Errors: those of TakeTurn.
func (r *Request) TakeFilters() (leave func(), err error) {
	filtering := r.socket.filtering
	return func() { filtering.Release(1) }, r.TakeTurn(r.Context(), filtering)
}
