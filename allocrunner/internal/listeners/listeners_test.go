package listeners_test

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/drivers"
	"taskapi/allocrunner/internal/listeners"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

func newSet(t *testing.T) *listeners.Set {
	t.Helper()
	s := listeners.New(slog.New(slog.DiscardHandler))
	t.Cleanup(s.Close)
	return s
}

// free returns a listener on a free port.
func free(t *testing.T, network string) drivers.Listener {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return drivers.Listener{Name: "http", Network: network, HostIP: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port}
}

func take(t *testing.T, s *listeners.Set, task string, want ...drivers.Listener) []*os.File {
	t.Helper()
	return must.Get(s.Take(task, want))(t)
}

func address(l drivers.Listener) string { return net.JoinHostPort(l.HostIP, strconv.Itoa(l.Port)) }

func refused(t *testing.T, l drivers.Listener) bool {
	t.Helper()
	conn, err := net.Dial("tcp", address(l))
	if err != nil {
		return errors.Is(err, unix.ECONNREFUSED)
	}
	conn.Close()
	return false
}

// accepts reports whether a connection comes out of a socket.
func accepts(t *testing.T, f *os.File) bool {
	t.Helper()
	poll := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
	n, _ := unix.Poll(poll, int(polltest.Deadline().Milliseconds()))
	if n != 1 || poll[0].Revents != unix.POLLIN {
		return false
	}
	fd, _, err := unix.Accept(int(f.Fd()))
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}

// TestKept: the next process gets the same socket, with the clients that have come meanwhile.
func TestKept(t *testing.T) {
	t.Parallel()
	s, l := newSet(t), free(t, "tcp")
	first := take(t, s, "a", l)[0]
	if refused(t, l) {
		t.Fatal("nobody listens")
	}
	if second := take(t, s, "a", l)[0]; second != first {
		t.Error("it was opened again")
	}
	if !accepts(t, first) {
		t.Error("the client is lost")
	}
	s.Drop("a")
	if !refused(t, l) {
		t.Error("it is kept after the task's end")
	}
	take(t, s, "a", l)
	take(t, s, "a")
	if !refused(t, l) {
		t.Error("it is kept for a task that no longer wants it")
	}
	take(t, s, "a", l)
	s.Close()
	if _, err := s.Take("a", []drivers.Listener{l}); !errors.Is(err, drivers.ErrClosed) || !refused(t, l) {
		t.Errorf("after Close: %v", err)
	}
}

// TestShared: two tasks that want one port have one socket, which stays as long as one of them wants it.
func TestShared(t *testing.T) {
	t.Parallel()
	s, l := newSet(t), free(t, "tcp")
	other := l
	other.Name = "alias"
	if take(t, s, "a", l)[0] != take(t, s, "b", other)[0] {
		t.Error("there are two")
	}
	s.Drop("a")
	if refused(t, l) {
		t.Error("it was closed")
	}
	s.Drop("b")
	if !refused(t, l) {
		t.Error("it was kept")
	}
}

// TestShutDown: a socket that a task has shut down, for all that have it, listens again, at the latest for the next
// process.
func TestShutDown(t *testing.T) {
	t.Parallel()
	s, l := newSet(t), free(t, "tcp")
	for range 3 {
		f := take(t, s, "a", l)[0]
		must.OK(t, unix.Shutdown(int(f.Fd()), unix.SHUT_RDWR))
		if again := take(t, s, "a", l)[0]; refused(t, l) || !accepts(t, again) {
			t.Error("it does not listen for the next process")
		}
		must.OK(t, unix.Shutdown(int(f.Fd()), unix.SHUT_RD))
		if !polltest.Until(func() bool { return !refused(t, l) }) {
			t.Fatal("it does not listen again by itself")
		}
		if !accepts(t, f) {
			t.Error("the client is lost")
		}
	}
}

// TestUDP: datagrams wait, too, and a socket that a task has connected takes those of others again.
func TestUDP(t *testing.T) {
	t.Parallel()
	s, l := newSet(t), free(t, "udp")
	f := take(t, s, "a", l)[0]
	stranger := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 9}
	must.OK(t, unix.Connect(int(f.Fd()), stranger))
	if take(t, s, "a", l)[0] != f {
		t.Error("it was opened again")
	}
	conn := must.Get(net.Dial("udp", address(l)))(t)
	defer conn.Close()
	must.Get(conn.Write([]byte("hello")))(t)
	buf := make([]byte, 10)
	_ = unix.SetsockoptTimeval(int(f.Fd()), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60})
	if n, _, err := unix.Recvfrom(int(f.Fd()), buf, 0); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("got %q, %v", buf[:max(n, 0)], err)
	}
}

// TestShutDownUDP: nothing undoes that a task has shut a UDP socket down, so the next process has another one.
func TestShutDownUDP(t *testing.T) {
	t.Parallel()
	s, l := newSet(t), free(t, "udp")
	f := take(t, s, "a", l)[0]
	if err := unix.Shutdown(int(f.Fd()), unix.SHUT_RDWR); !errors.Is(err, unix.ENOTCONN) { // it is done all the same
		t.Fatal(err)
	}
	_, copies := s.Sockets() // as taskapi has
	defer drivers.CloseFiles(copies)
	f = take(t, s, "a", l)[0]
	conn := must.Get(net.Dial("udp", address(l)))(t)
	defer conn.Close()
	poll := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
	if n, err := unix.Poll(poll, 0); n != 0 || err != nil {
		t.Errorf("without a datagram there is something to read: %x, %v", poll[0].Revents, err)
	}
	must.Get(conn.Write([]byte("hello")))(t)
	if n, err := unix.Poll(poll, int(polltest.Deadline().Milliseconds())); n != 1 || err != nil {
		t.Errorf("no datagram comes: %v", err)
	}
	if p, err := net.ListenPacket("udp", address(l)); err == nil {
		p.Close()
		t.Error("a stranger could take the port")
	}
}

// TestTaken says who has the port, and keeps nothing half.
func TestTaken(t *testing.T) {
	t.Parallel()
	s, l, mine := newSet(t), free(t, "tcp"), free(t, "tcp")
	there, err := net.Listen("tcp", address(l))
	must.OK(t, err)
	defer there.Close()
	_, err = s.Take("a", []drivers.Listener{mine, l})
	start, ok := errors.AsType[*drivers.StartError](err)
	if !ok || !strings.Contains(start.Reason, "port is already in use") {
		t.Errorf("got %v", err)
	}
	s.Drop("a")
	if !refused(t, mine) {
		t.Error("the other socket is kept")
	}
}
