package load

import (
	"syscall"
	"testing"

	"taskapi/internal/must"
)

func TestAnExchangeAllocatesNothing(t *testing.T) {
	pair := must.Get(syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0))(t)
	defer syscall.Close(pair[1])
	request := []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	r := &run{Config: Config{Requests: [][]byte{request}}, conns: []conn{{fd: pair[0]}}}
	defer r.close()
	reply := []byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	allocations := testing.AllocsPerRun(100, func() {
		must.OK(t, r.send(&r.conns[0]))
		must.Get(syscall.Write(pair[1], reply))(t)
		if status, err := r.conns[0].read(); status != 200 || err != nil {
			t.Fatalf("got %d, %v; want 200, no error", status, err)
		}
	})
	if allocations != 0 {
		t.Errorf("an exchange makes %v allocations, want none", allocations)
	}
}

func TestAReplyInPieces(t *testing.T) {
	pair := must.Get(syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0))(t)
	defer syscall.Close(pair[1])
	c := &conn{fd: pair[0]}
	defer syscall.Close(c.fd)
	reply := "HTTP/1.1 404 Not Found\r\nContent-Type: x\r\nContent-Length: 5\r\n\r\nhello"
	for i := range reply {
		must.Get(syscall.Write(pair[1], []byte{reply[i]}))(t)
		want := 0
		if i == len(reply)-1 {
			want = 404
		}
		if status, err := c.read(); status != want || err != nil {
			t.Fatalf("after %d of %d bytes: got %d, %v; want %d", i+1, len(reply), status, err, want)
		}
	}
}
