package load

import (
	"syscall"
	"testing"
)

func TestAnExchangeAllocatesNothing(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(pair[1])
	c := &conn{fd: pair[0], buf: make([]byte, 4096)}
	defer c.close()
	request := []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	reply := []byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	allocations := testing.AllocsPerRun(100, func() {
		if err := c.write(request); err != nil {
			t.Fatal(err)
		}
		if _, err := syscall.Write(pair[1], reply); err != nil {
			t.Fatal(err)
		}
		if status, done, err := c.read(); status != 200 || !done || err != nil {
			t.Fatalf("got %d, %v, %v; want 200, true, no error", status, done, err)
		}
	})
	if allocations != 0 {
		t.Errorf("an exchange makes %v allocations, want none", allocations)
	}
}

func TestAReplyInPieces(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(pair[1])
	c := &conn{fd: pair[0], buf: make([]byte, 4096)}
	defer c.close()
	reply := "HTTP/1.1 404 Not Found\r\nContent-Type: x\r\nContent-Length: 5\r\n\r\nhello"
	for i := range reply {
		if _, err := syscall.Write(pair[1], []byte{reply[i]}); err != nil {
			t.Fatal(err)
		}
		status, done, err := c.read()
		if err != nil || done != (i == len(reply)-1) || done && status != 404 {
			t.Fatalf("after %d of %d bytes: got %d, %v, %v", i+1, len(reply), status, done, err)
		}
	}
}
