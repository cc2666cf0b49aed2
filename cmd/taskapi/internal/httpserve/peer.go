package httpserve

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// OfUser reports whether a request comes over TCP from a process of root or of one of the users, as the kernel's tables
// say. They are read for the first request of a connection. They are read twice: while a process closes its socket, the
// kernel may once write root's number for it.
func OfUser(r *http.Request, users []int) bool {
	c := r.Context().Value(connKey{}).(*conn)
	if c.ofUser {
		return true
	}
	client, err := netip.ParseAddrPort(r.RemoteAddr)
	server, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	may := func() bool {
		uid, found := ownerOf(client, server.AddrPort())
		return found && (uid == 0 || slices.Contains(users, uid))
	}
	c.ofUser = err == nil && ok && may() && may()
	return c.ofUser
}

// ownerOf returns the user whose process holds the client's end of a connection within this machine.
func ownerOf(client, server netip.AddrPort) (uid int, found bool) {
	for _, table := range []string{"tcp", "tcp6"} { // a client's socket for IPv6 can have an address of IPv4
		text, _ := os.ReadFile("/proc/self/net/" + table) // empty without IPv6
		ends := entry(client, table) + " " + entry(server, table)
		for line := range strings.Lines(string(text)) {
			words := strings.Fields(line) // number, local, remote, state, queues, timer, retries, uid, timeout, inode
			if len(words) > 9 && words[9] != "0" && words[1]+" "+words[2] == ends {
				uid, err := strconv.Atoi(words[7])
				return uid, err == nil
			}
		}
	}
	return 0, false
}

// entry returns an address as the kernel's table has it: words of four bytes in this machine's order, and the port.
func entry(a netip.AddrPort, table string) string {
	ip, text := a.Addr().AsSlice(), ""
	if as16 := a.Addr().As16(); table == "tcp6" {
		ip = as16[:]
	}
	for word := range slices.Chunk(ip, 4) {
		text += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(word))
	}
	return fmt.Sprintf("%s:%04X", text, a.Port())
}
