package ports_test

import (
	"net"
	"net/netip"
	"strconv"
	"testing"

	"taskapi/allocrunner/internal/ports"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func TestHostIP(t *testing.T) {
	for hostIP, want := range map[string]string{
		"localhost":      `"localhost" is no IP address`,
		"fe80::1":        "of which interface",
		"fe80::1%absent": `no interface "absent"`,
		"fe80::1%999999": `no interface "999999"`,
		"::1%lo":         "for link-local addresses",
		"192.0.2.1":      "192.0.2.1 is no address of this machine",
	} {
		_, err := ports.Allocate(ports.Config{HostIP: hostIP, Networks: dynamic("x")})
		same.Says(t, ports.ErrHostIP, want, err, hostIP)
	}
}

// linkLocal returns a link-local address of this machine and the interface that has it.
func linkLocal(t *testing.T) (netip.Addr, net.Interface) {
	t.Helper()
	links := must.Get(net.Interfaces())(t)
	for _, link := range links {
		addresses := must.Get(link.Addrs())(t)
		for _, a := range addresses {
			prefix, err := netip.ParsePrefix(a.String())
			if err == nil && prefix.Addr().Is6() && prefix.Addr().IsLinkLocalUnicast() {
				return prefix.Addr(), link
			}
		}
	}
	t.Skip("no interface has a link-local address")
	return netip.Addr{}, net.Interface{}
}

func TestLinkLocalAddress(t *testing.T) {
	ip, link := linkLocal(t)
	named, numbered := ip.WithZone(link.Name).String(), ip.WithZone(strconv.Itoa(link.Index)).String()
	r := newReservation(t, ports.Config{HostIP: named, Networks: dynamic("x")})
	got := r.Mappings()[0]
	same.As(t, named, got.HostIP, "the address is")
	at := net.JoinHostPort(named, strconv.Itoa(got.Value))
	if l, err := net.Listen("tcp", at); err == nil {
		l.Close()
		t.Error("a stranger could listen on a held port")
	}
	r.ReleaseSockets()
	for _, hostIP := range []string{named, numbered, "::"} {
		same.Error(t, ports.ErrTaken, same.Err(locked(hostIP, got.Value)), hostIP)
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatalf("the task can't listen: %v", err)
	}
	l.Close()
}
