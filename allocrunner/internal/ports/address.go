package ports

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
)

// parseHostIP reads an address into the form in which addresses are compared: an IPv4-mapped IPv6 address becomes an
// IPv4 address, and the zone of a link-local address, which the kernel needs, becomes the number of the interface.
func parseHostIP(text string) (netip.Addr, error) {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return ip, fmt.Errorf("%w: %q is no IP address", ErrHostIP, text)
	}
	ip = ip.Unmap()
	linkLocal := ip.Is6() && ip.IsLinkLocalUnicast()
	switch zone := ip.Zone(); {
	case zone == "" && linkLocal:
		return ip, fmt.Errorf("%w: %s is link-local, so say of which interface, as in %s%%eth0", ErrHostIP, ip, ip)
	case zone == "":
		return ip, nil
	case !linkLocal:
		return ip, fmt.Errorf("%w: %s names an interface, which is for link-local addresses", ErrHostIP, ip)
	}
	link, err := net.InterfaceByName(ip.Zone())
	if index, bad := strconv.Atoi(ip.Zone()); err != nil && bad == nil {
		link, err = net.InterfaceByIndex(index)
	}
	if err != nil {
		return ip, fmt.Errorf("%w: %s: there is no interface %q", ErrHostIP, text, ip.Zone())
	}
	return ip.WithZone(strconv.Itoa(link.Index)), nil
}

// sockaddr is for addresses from parseHostIP.
func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	zone, _ := strconv.ParseUint(at.Addr().Zone(), 10, 32) // none is 0
	return &unix.SockaddrInet6{Port: int(at.Port()), ZoneId: uint32(zone), Addr: at.Addr().As16()}
}

// overlap reports whether a socket on one address keeps another from the other address. A wildcard overlaps with every
// address.
func overlap(a, b netip.Addr) bool {
	return a.IsUnspecified() || b.IsUnspecified() || a.Unmap().WithZone("") == b.Unmap().WithZone("")
}
