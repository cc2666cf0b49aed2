package peercred_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"taskapi/internal/must"
	"taskapi/internal/peercred"
)

func TestOf(t *testing.T) {
	listener := must.Get(net.Listen("unix", filepath.Join(t.TempDir(), "sock")))(t)
	defer listener.Close()
	conn := must.Get(net.Dial("unix", listener.Addr().String()))(t)
	defer conn.Close()
	accepted := must.Get(listener.Accept())(t)
	for name, c := range map[string]net.Conn{"of the client": accepted, "of the server": conn} {
		got, err := peercred.Of(c.(*net.UnixConn))
		if err != nil || int(got.PID) != os.Getpid() || int(got.UID) != os.Geteuid() || int(got.GID) != os.Getegid() {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	accepted.Close()
	if got, err := peercred.Of(accepted.(*net.UnixConn)); !errors.Is(err, net.ErrClosed) || got != (peercred.Cred{}) {
		t.Errorf("of a closed connection: %+v, %v", got, err)
	}
}
