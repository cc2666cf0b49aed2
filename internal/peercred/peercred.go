// Package peercred asks the kernel which process and user are at the other end of a Unix socket.
package peercred

import (
	"errors"
	"fmt"
	"syscall"
)

// Cred is a process with its user and group.
type Cred struct {
	PID      int32 // 0 across PID namespaces
	UID, GID uint32

	// Address and Certificate are those of a client of another machine, for which another process stands here: its
	// address, and the name in its certificate.
	Address, Certificate string
}

// Of returns the process, user and group at the other end of a connection, as the kernel saw them at connect time
// (SO_PEERCRED, unix(7); LOCAL_PEERCRED on macOS).
func Of(conn syscall.Conn) (Cred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Cred{}, fmt.Errorf("reach the descriptor: %w", err)
	}
	var cred Cred
	var optErr error
	err = raw.Control(func(fd uintptr) { cred, optErr = of(int(fd)) })
	if err := errors.Join(err, optErr); err != nil {
		return Cred{}, err
	}
	return cred, nil
}
