package handlers

import (
	"context"
	"net/http"
)

// upgrade lets the handler take the connection, by http.Hijacker, and closes it when the token is not valid any more or the server stops;
// ServeHTTP does when the handler returns. It returns the status: 101 when the connection was taken.
func (s *socketServer) upgrade(ctx context.Context, r *request, result answer) int {
	leave, err := s.enterStream()
	if err != nil {
		return s.fail(r, err)
	}
	defer leave()
	conn := connectionOf(r.Context())
	// The connection outlives r, which goes back into a pool when the handler returns: what the handler has left writing is still decided by this.
	conn.upgrading = &request{Request: r.Request, Principal: r.Principal, Peer: r.Peer, server: s}
	r.whileAuthorized(ctx, func(ctx context.Context) {
		closed := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			if result.farewell != nil {
				result.farewell(context.Cause(ctx))
			}
			_ = conn.Close() // a read or a write that is under way fails
			close(closed)
		})
		defer func() {
			if !stop() {
				<-closed
			}
		}()
		err = result.upgrade(ctx, r.w)
	})
	if conn.upgraded == nil {
		return s.fail(r, err)
	}
	s.recordRead(r, http.StatusSwitchingProtocols)
	return http.StatusSwitchingProtocols
}

// readUpgraded lets pass what an upgraded connection has read, if its turn has come and its token is still valid.
func (c *connection) readUpgraded(n int, err error) (int, error) {
	if n > 0 {
		c.awaitTurn(n)
		if denied := c.upgraded.recheck(); denied != nil {
			return 0, denied
		}
	}
	return n, err
}

// Write writes to the client. On an upgraded connection each write is a frame, as of a stream.
func (c *connection) Write(b []byte) (int, error) {
	if c.upgraded == nil {
		return c.Conn.Write(b)
	}
	c.awaitTurn(len(b))
	if err := c.upgraded.recheck(); err != nil {
		return 0, err
	}
	c.enter(writing)
	if c.patient {
		c.enter(paging)
	}
	defer c.enter(serving)
	return c.Conn.Write(b)
}

// endUpgrade closes the connection if its handler has taken it, which net/http leaves to the handler. Serve waits for it.
func (c *connection) endUpgrade() {
	c.upgrading = nil
	if c.upgraded != nil {
		_ = c.Close()
		c.watchdog.forget(c)
	}
}
