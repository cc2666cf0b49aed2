package socket

import (
	"errors"
	"net"
	"sync/atomic"

	"taskapi/internal/peercred"
)

// Peer is the process that connected, as the kernel recorded it at connect(2). A descriptor that was passed on keeps
// the credentials of its first owner, and PID is 0 across PID namespaces.
type Peer = peercred.Cred

// Conn is an accepted connection. It adds nothing to reading and writing.
type Conn struct {
	*net.UnixConn
	peer     Peer
	listener *Listener
	closed   atomic.Bool
}

// Peer returns the credentials that were read when the connection was accepted.
func (c *Conn) Peer() Peer { return c.peer }

// LocalAddr returns the path of the socket, not the temporary one that it was bound to.
func (c *Conn) LocalAddr() net.Addr { return c.listener.Addr() }

// Close closes the connection and frees its place. Further calls return net.ErrClosed.
func (c *Conn) Close() error {
	if c.closed.Swap(true) {
		return net.ErrClosed
	}
	err := c.UnixConn.Close()
	c.listener.release()
	return err
}

// errNoPeer means that the kernel knows no user for the other end.
var errNoPeer = errors.New("no peer credentials")

// noUID is the kernel's answer when it has recorded no user.
const noUID = ^uint32(0)

func readPeer(c *net.UnixConn) (Peer, error) {
	peer, err := peercred.Of(c)
	if err == nil && peer.UID == noUID {
		return Peer{}, errNoPeer
	}
	return peer, err
}
