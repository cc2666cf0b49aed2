package httpserve

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"taskapi/internal/must"
	"taskapi/internal/same"
)

// TestOwnerOf a connection, also of one from an IPv6 socket to an IPv4 address, and of one that is closed.
func TestOwnerOf(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("%s: %v", address, err) // without IPv6
			continue
		}
		defer l.Close()
		c := must.Get(net.Dial("tcp", l.Addr().String()))(t)
		client, server := c.LocalAddr().(*net.TCPAddr).AddrPort(), l.Addr().(*net.TCPAddr).AddrPort()
		if uid, found := ownerOf(client, server); !found || uid != os.Getuid() {
			t.Errorf("%s: user %d, %t", address, uid, found)
		}
		if _, found := ownerOf(netip.AddrPortFrom(client.Addr(), client.Port()^1), server); found {
			t.Error("another port has an owner")
		}
		c.Close()
		if uid, found := ownerOf(client, server); found {
			t.Errorf("a closed connection is user %d's", uid)
		}
	}
	mapped := netip.MustParseAddrPort("127.0.0.1:4660")
	same.As(t, "0000000000000000FFFF00000100007F:1234", entry(mapped, "tcp6"), "in the table for IPv6, ", mapped, " is")
}
