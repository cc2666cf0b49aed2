package ports

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// A claim is made of sockets in the abstract namespace that listen and accept nothing: one process has a name, and whoever finds it
// taken can connect and learn by whom. The names of port 8080 are
//
//	@taskapi/port/8080/127.0.0.1   of one address
//	@taskapi/port/8080/*           of every address
//	@taskapi/port/8080/place/0     of the places, up to the last
//
// Who claims one address takes its name and any place, keeps both, and fails if somebody has every address. Who claims every
// address takes all places and then that name, keeps the name, and gives the places back. So the two never go together: either
// the one has its place before the other comes by, who then lacks it; or gets it after they were given back, and finds the name.
// And of those that try at once one succeeds, since nobody fails but for what another has.

const (
	everyAddress = "*"

	// places is how many addresses one port can be claimed on at once. All of them are opened for a moment, to claim every address.
	places = 128
)

// claimName must stay as it is: taskapis of different versions and users keep out of each other's way by it.
func claimName(port uint16, what string) *unix.SockaddrUnix {
	return &unix.SockaddrUnix{Name: fmt.Sprintf("@taskapi/port/%d/%s", port, what)}
}

func placeName(i int) string { return fmt.Sprintf("place/%d", i) }

// claim keeps other taskapi processes from the address's port. A wildcard is every address, also of the other family: "::" takes
// connections to all of them. What was claimed before an error is h's to close.
func (h *hold) claim(at netip.AddrPort) error {
	port := at.Port()
	if at.Addr().IsUnspecified() {
		return h.claimEvery(port)
	}
	if err := h.claimOne(port, at.Addr().String()); err != nil {
		return err
	}
	if err := h.claimPlace(port); err != nil {
		return err
	}
	pid, err := holderOf(port, everyAddress)
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return nil
	case err == nil || errors.Is(err, unix.EAGAIN):
		return reserved(port, pid)
	}
	return fmt.Errorf("claim port %d: %w", port, err)
}

func (h *hold) claimEvery(port uint16) error {
	passing := new(hold)
	defer passing.close()
	for i := range places {
		if err := passing.claimOne(port, placeName(i)); err != nil {
			return err
		}
	}
	return h.claimOne(port, everyAddress)
}

func (h *hold) claimPlace(port uint16) error {
	for i := range places {
		err := h.listen(claimName(port, placeName(i)))
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("claim port %d: %w", port, err)
		}
	}
	return fmt.Errorf("%w: %d is reserved for other allocations, on %d addresses or all of them", ErrTaken, port, places)
}

func (h *hold) claimOne(port uint16, what string) error {
	err := h.listen(claimName(port, what))
	if errors.Is(err, unix.EADDRINUSE) {
		pid, _ := holderOf(port, what) // for the message alone
		return reserved(port, pid)
	}
	if err != nil {
		return fmt.Errorf("claim port %d: %w", port, err)
	}
	return nil
}

func (h *hold) listen(name *unix.SockaddrUnix) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	err = unix.Bind(fd, name)
	if err == nil {
		err = unix.Listen(fd, 1)
	}
	if err != nil {
		unix.Close(fd)
		return err
	}
	h.claims = append(h.claims, fd)
	return nil
}

// reserved says that a port is another's, and whose; pid is 0 when that can't be told.
func reserved(port uint16, pid int32) error {
	whose := ""
	if pid != 0 {
		whose = fmt.Sprintf(" (taskapi, pid %d)", pid)
	}
	return fmt.Errorf("%w: %d is reserved for another allocation%s", ErrTaken, port, whose)
}

// holderOf is the process that has a name. The error is ECONNREFUSED when nobody has it, and another one when it can't be told who,
// such as EAGAIN when two have asked before.
func holderOf(port uint16, what string) (pid int32, err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, claimName(port, what)); err != nil {
		return 0, err
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, err
	}
	return cred.Pid, nil
}
