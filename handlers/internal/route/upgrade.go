package route

import (
	"context"
	"net/http"
)

// upgrade lets the handler take the connection, by http.Hijacker, and closes it when the token is not valid any more or
// the server stops. It returns the status: 101 when the connection was taken.
func (s *socket) upgrade(ctx context.Context, r *Request, result Answer) int {
	leave, err := s.enterStream()
	if err != nil {
		return s.fail(r, err)
	}
	defer leave()
	conn := r.conn
	// The connection outlives r, which goes back into a pool when the handler returns. This copy decides on what the
	// handler has left writing.
	held := &Request{Request: r.Request, Principal: r.Principal, conn: conn, socket: s}
	conn.Upgrading(held.recheck)
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
