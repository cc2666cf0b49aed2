package ui

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"taskapi/cmd/taskapi/internal/httpserve"
	"taskapi/internal/must"
)

// TestSecretsEnd: a link is good for a minute, and a session for twelve hours.
func TestSecretsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(t.Context(), Config{Address: httpserve.Address{Socket: "/x"}})
		ask := func(target, cookie string) *http.Response {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodGet, target, nil)
			r.Header.Set("Cookie", cookie)
			s.ServeHTTP(w, r)
			return w.Result()
		}
		old := s.Link()
		time.Sleep(linkTime)
		if got := ask(old, "").StatusCode; got != http.StatusForbidden {
			t.Errorf("a link after a minute: %d", got)
		}
		replaced, link := s.Link(), s.Link()
		if got := ask(replaced, "").StatusCode; got != http.StatusForbidden {
			t.Errorf("a link before the latest: %d", got)
		}
		time.Sleep(linkTime - time.Nanosecond)
		cookie, _, _ := strings.Cut(ask(link, "").Header.Get("Set-Cookie"), ";")
		script := "http://" + s.name + ".localhost/static/ui.js"
		time.Sleep(sessionTime - time.Nanosecond)
		if got := ask(script, "a=b; "+cookie).StatusCode; got != http.StatusOK {
			t.Errorf("a session within its time: %d", got)
		}
		time.Sleep(time.Nanosecond)
		if got := ask(script, cookie).StatusCode; got != http.StatusUnauthorized {
			t.Errorf("a session after its time: %d", got)
		}
	})
}

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
	if got := entry(mapped, "tcp6"); got != "0000000000000000FFFF00000100007F:1234" {
		t.Errorf("in the table for IPv6, %s is %s", mapped, got)
	}
}
