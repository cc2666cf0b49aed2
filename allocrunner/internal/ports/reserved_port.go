package ports

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"taskapi/internal/proc"
)

// reservedPort is one port: its locks, and its sockets, as descriptors.
type reservedPort struct {
	at      netip.AddrPort
	left    func(owner string) bool // Config's
	locks   []*os.File
	shared  bool // another process has one of them for the same owner
	sockets []int
}

// bindAll binds the port's sockets. Errors: ErrTaken, ErrHostIP, ErrPermission.
func (h *reservedPort) bindAll(static bool) error {
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
		fd, err := bind(h.at, kind, static)
		if err != nil {
			return explain(h.at, kind, static, err)
		}
		h.sockets = append(h.sockets, fd)
	}
	return nil
}

func (h *reservedPort) releaseSockets() {
	for _, fd := range h.sockets {
		unix.Close(fd)
	}
	h.sockets = nil
}

func (h *reservedPort) close() {
	h.releaseSockets()
	h.release()
}

// bind binds a socket and does not listen: no other socket can have the address, and nobody can connect. Connections of
// an earlier owner that linger in TIME_WAIT prevent this for a minute. For a static port, which has no substitute, bind
// ignores them, as the task's own bind will.
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
		// The option is taken back afterwards: with it, others that have it could bind, too.
		err = cmp.Or(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, sockaddr(at)),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0))
	}
	if err != nil {
		unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

// explain says why an address can't be bound. It looks up the holder only for a static port: another port would do for
// a dynamic one.
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
		return fmt.Errorf("%w: %d needs root or CAP_NET_BIND_SERVICE; take one from %d up", ErrPermission, at.Port(),
			proc.FirstUnprivilegedPort())
	}
	return fmt.Errorf("bind %s (%s): %w", at, proto, err)
}

// maxBacklog is more than the kernel's greatest queue of connections that wait to be accepted, which it uses then
// (net.core.somaxconn).
const maxBacklog = 1 << 20

// Listen opens a socket on an address and a port, such as 127.0.0.1:80, for others to use: "tcp" with the longest queue
// that the kernel allows, or "udp". broken is a socket there in place of which this one is opened, although other
// processes have it, too; nil for none. Errors: ErrTaken, ErrHostIP, ErrPermission.
func Listen(network, hostIP string, port int, broken *os.File) (*os.File, error) {
	ip, err := parseHostIP(hostIP)
	if err != nil {
		return nil, err
	}
	at, kind, family := netip.AddrPortFrom(ip, uint16(port)), unix.SOCK_STREAM, unix.AF_INET
	if network == "udp" {
		kind = unix.SOCK_DGRAM
	}
	if ip.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if kind == unix.SOCK_STREAM { // connections of before may linger in TIME_WAIT
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	} else if broken != nil { // of the sockets of a UDP port, the latest gets the datagrams
		for _, s := range []int{fd, int(broken.Fd())} {
			err = errors.Join(err, unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
			defer func() { _ = unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0) }() // for strangers
		}
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(at))
	}
	if err == nil && kind == unix.SOCK_STREAM {
		err = unix.Listen(fd, maxBacklog)
	}
	if err != nil {
		unix.Close(fd)
		return nil, explain(at, kind, true, err)
	}
	return os.NewFile(uintptr(fd), network+" "+at.String()), nil
}

// ListenAgain makes a socket of Listen listen if it does not do so any more, since a program has shut it down
// (shutdown(2)), and reports whether that was so.
func ListenAgain(f *os.File) (wasDown bool, err error) {
	listens, err := unix.GetsockoptInt(int(f.Fd()), unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil || listens != 0 {
		return false, err
	}
	return true, os.NewSyscallError("listen", unix.Listen(int(f.Fd()), maxBacklog))
}
