package transport

// Upgrading lets the handler of the present request take the connection, by http.Hijacker. From then on, each read and
// each write is a frame: it waits for its turn among busy sockets, and its error is recheck's. The connection is closed
// when the handler returns.
func (c *Conn) Upgrading(recheck func() error) { c.recheck = recheck }

// Upgraded reports whether the handler has taken the connection.
func (c *Conn) Upgraded() bool { return c.upgraded }

// readUpgraded lets pass what an upgraded connection has read, if its turn has come and recheck has no objection.
func (c *Conn) readUpgraded(n int, err error) (int, error) {
	if n > 0 {
		c.AwaitTurn(n)
		if denied := c.recheck(); denied != nil {
			return 0, denied
		}
	}
	return n, err
}

// Write writes to the client. On an upgraded connection each write is a frame.
func (c *Conn) Write(b []byte) (int, error) {
	if !c.upgraded {
		return c.Conn.Write(b)
	}
	c.AwaitTurn(len(b))
	if err := c.recheck(); err != nil {
		return 0, err
	}
	c.enter(writing)
	if c.Patient {
		c.enter(paging)
	}
	defer c.enter(serving)
	return c.Conn.Write(b)
}

// endUpgrade closes the connection if its handler has taken it, which net/http leaves to the handler.
func (c *Conn) endUpgrade() {
	if !c.upgraded {
		c.recheck = nil
		return
	}
	_ = c.Close()
	c.watchdog.forget(c)
}
