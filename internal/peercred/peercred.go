// Package peercred asks the kernel which process and user are at the other end of a Unix socket.
package peercred

import (
	"errors"
	"fmt"
	"net/netip"
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

// NetworkOf returns what one client may have of the addresses: an IPv4 address, or the 64 bits of an IPv6 address that
// name its network. The address has a port. The zero Prefix stands for what is no address.
func NetworkOf(address string) netip.Prefix {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return netip.Prefix{}
	}
	ip := at.Addr().Unmap()
	network, _ := ip.Prefix(min(ip.BitLen(), 64)) // no IP has fewer bits
	return network
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
