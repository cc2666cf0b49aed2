// Package peercred says who is at the other end of a Unix socket.
package peercred

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Of returns the process, user and group at the other end of a connection, as the kernel saw them at connect time (SO_PEERCRED, unix(7)).
func Of(conn syscall.Conn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("reach the descriptor: %w", err)
	}
	var cred *unix.Ucred
	var optErr error
	err = raw.Control(func(fd uintptr) { cred, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, optErr); err != nil {
		return nil, fmt.Errorf("getsockopt SO_PEERCRED: %w", err)
	}
	return cred, nil
}
