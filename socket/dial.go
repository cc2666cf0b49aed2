package socket

import (
	"context"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// ListenerOf returns the process that listens at the other end of a connection made by Dial, as the kernel recorded it
// at listen(2).
func ListenerOf(c net.Conn) (Peer, error) {
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return Peer{}, fmt.Errorf("connection of type %T: %w", c, errNoPeer)
	}
	return readPeer(conn)
}

// Dial connects to the socket at an absolute path of any length up to PATH_MAX (4,095 bytes). It follows symbolic
// links.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	if err := checkPath(path); err != nil {
		return nil, fmt.Errorf("dial %q: %w", path, err)
	}
	var d net.Dialer
	if len(path) <= maxSunPath {
		return d.DialContext(ctx, "unix", path)
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", path, err)
	}
	defer unix.Close(fd)
	c, err := d.DialContext(ctx, "unix", procFD(fd))
	if err != nil {
		return nil, fmt.Errorf("dial %q: %w", path, err)
	}
	return c, nil
}
