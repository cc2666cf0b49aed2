package route

import "context"

// Turn lets one at a time do something that takes much memory or time.
type Turn chan struct{}

func NewTurn() Turn { return make(Turn, 1) }

// Take waits for the turn, which leave ends. Errors: ctx's.
func (t Turn) Take(ctx context.Context) (leave func(), err error) {
	select {
	case t <- struct{}{}:
		return func() { <-t }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TakeTurn is take for a request. Errors: *auth.Denial when the token is not valid any more after the wait, ctx's.
func (r *Request) TakeTurn(ctx context.Context, t Turn) (leave func(), err error) {
	if leave, err = t.Take(ctx); err != nil {
		return nil, err
	}
	if err := r.recheck(); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}
