package ports

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// hold is one port: its claim and its sockets, as descriptors.
type hold struct {
	claim   int
	sockets []int
}

// noClaim is no descriptor.
const noClaim = -1

// options say how a port is taken.
type options struct {
	claimOnly bool // a task may have it already
	static    bool // no other would do
}

// take claims a port and binds it. Errors: ErrTaken, ErrHostIP, ErrPermission.
func take(at netip.AddrPort, o options) (_ *hold, err error) {
	h := &hold{claim: noClaim}
	if h.claim, err = claim(at.Port()); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	if o.claimOnly {
		return h, nil
	}
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
		fd, err := bind(at, kind, o.static)
		if err != nil {
			return nil, explain(at, kind, o.static, err)
		}
		h.sockets = append(h.sockets, fd)
	}
	return h, nil
}

func (h *hold) releaseSockets() {
	for _, fd := range h.sockets {
		unix.Close(fd)
	}
	h.sockets = nil
}

func (h *hold) close() {
	h.releaseSockets()
	if h.claim != noClaim {
		unix.Close(h.claim)
	}
	h.claim = noClaim
}

// claimName is the abstract name of a port's claim. It is the same for every version and every user.
func claimName(port uint16) *unix.SockaddrUnix {
	return &unix.SockaddrUnix{Name: "@taskapi/port/" + strconv.Itoa(int(port))}
}

// claim keeps other taskapi processes from the port. The socket listens, and accepts nothing, so that a process that finds it
// can connect and learn whose it is.
func claim(port uint16) (_ int, err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return noClaim, fmt.Errorf("claim port %d: %w", port, err)
	}
	err = unix.Bind(fd, claimName(port))
	if err == nil {
		err = unix.Listen(fd, 1)
	}
	if err == nil {
		return fd, nil
	}
	unix.Close(fd)
	if errors.Is(err, unix.EADDRINUSE) {
		return noClaim, fmt.Errorf("%w: %d is reserved for another allocation%s", ErrTaken, port, claimant(port))
	}
	return noClaim, fmt.Errorf("claim port %d: %w", port, err)
}

// claimant names the process that holds a claim, when it can be told.
func claimant(port uint16) string {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	if unix.Connect(fd, claimName(port)) != nil {
		return ""
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (taskapi, pid %d)", cred.Pid)
}

// bind binds a socket and does not listen: no other socket can have the address, and nobody can connect. Connections of an
// earlier owner that linger in TIME_WAIT forbid that for a minute; for a static port, which has no substitute, they are
// overlooked, as the task's own bind will overlook them.
func bind(at netip.AddrPort, kind int, static bool) (int, error) {
	family := unix.AF_INET
	if at.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	err = unix.Bind(fd, sockaddr(at))
	if errors.Is(err, unix.EADDRINUSE) && static && kind == unix.SOCK_STREAM {
		err = bindOver(fd, at)
	}
	if err != nil {
		unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

// bindOver binds over connections in TIME_WAIT. The option is taken back afterwards: with it, others that have it could bind, too.
func bindOver(fd int, at netip.AddrPort) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	if err := unix.Bind(fd, sockaddr(at)); err != nil {
		return err
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
}

func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is6() {
		return &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	}
	return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
}

// explain says why an address can't be bound. Who has it is looked up for static ports alone: the others are just passed over.
func explain(at netip.AddrPort, kind int, static bool, err error) error {
	proto := "tcp"
	if kind == unix.SOCK_DGRAM {
		proto = "udp"
	}
	switch {
	case errors.Is(err, unix.EADDRINUSE) && static:
		return fmt.Errorf("%w: %s (%s)%s", ErrTaken, at, proto, holder(proto, at))
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("%w: %s (%s)", ErrTaken, at, proto)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%w: %s is no address of this machine", ErrHostIP, at.Addr())
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: %d needs root or CAP_NET_BIND_SERVICE; take one from %d up", ErrPermission, at.Port(), firstUnprivileged)
	}
	return fmt.Errorf("bind %s (%s): %w", at, proto, err)
}

// firstUnprivileged is the kernel's default of net.ipv4.ip_unprivileged_port_start.
const firstUnprivileged = 1024
