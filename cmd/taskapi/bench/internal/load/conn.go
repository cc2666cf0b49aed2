package load

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"
)

// A conn is one connection with at most one request under way.
type conn struct {
	fd   int // -1 when closed
	buf  []byte
	n    int           // bytes of buf that are filled
	sent time.Duration // when the request under way was sent
}

// dialTries bounds how often a full backlog is waited for, a millisecond each time.
const dialTries = 1000

func (c *conn) dial(socket string) error {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a socket: %w", err)
	}
	err = syscall.EAGAIN
	for tries := 0; err == syscall.EAGAIN && tries < dialTries; tries++ {
		if tries > 0 {
			time.Sleep(time.Millisecond)
		}
		err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket})
	}
	if err != nil {
		_ = syscall.Close(fd)
		return fmt.Errorf("connect to %s: %w", socket, err)
	}
	c.fd, c.n = fd, 0
	return nil
}

func (c *conn) close() {
	if c.fd >= 0 {
		_ = syscall.Close(c.fd)
		c.fd = -1
	}
}

// write sends a request whole. The server reads no less than it has answered, so the socket's buffer always has the
// room.
func (c *conn) write(request []byte) error {
	n, err := syscall.Write(c.fd, request)
	if err != nil {
		return fmt.Errorf("send a request: %w", err)
	}
	if n < len(request) {
		return fmt.Errorf("sent %d of %d bytes of a request: the socket's buffer is full", n, len(request))
	}
	return nil
}

// read takes what has arrived, and reports the status once the reply is complete.
func (c *conn) read() (status int, done bool, err error) {
	n, err := syscall.Read(c.fd, c.buf[c.n:])
	switch {
	case errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR):
		return 0, false, nil
	case err != nil:
		return 0, false, fmt.Errorf("read a reply: %w", err)
	case n == 0:
		return 0, false, fmt.Errorf("read a reply: the server closed the connection: %w", io.ErrUnexpectedEOF)
	}
	c.n += n
	status, size, err := frame(c.buf[:c.n])
	switch {
	case err != nil:
		return 0, false, err
	case size > len(c.buf) || size == 0 && c.n == len(c.buf):
		return 0, false, fmt.Errorf("a reply of more than %d bytes", len(c.buf))
	case size == 0 || c.n < size:
		return 0, false, nil
	case c.n > size:
		return 0, false, errors.New("more bytes than the reply's Content-Length")
	}
	c.n = 0
	return status, true, nil
}

var (
	headEnd       = []byte("\r\n\r\n")
	statusPrefix  = []byte("HTTP/1.1 ")
	contentLength = []byte("\r\nContent-Length: ") // as net/http writes it
)

// frame finds the status and the whole size in bytes of the reply that b begins with. The size is 0 while the head
// is incomplete.
func frame(b []byte) (status, size int, err error) {
	end := bytes.Index(b, headEnd)
	if end < 0 {
		return 0, 0, nil
	}
	head := b[:end+2]
	if !bytes.HasPrefix(head, statusPrefix) {
		return 0, 0, errors.New("a reply that does not begin with HTTP/1.1")
	}
	status, digits := number(head[len(statusPrefix):])
	if digits != 3 || status < 100 || status > 599 {
		return 0, 0, errors.New("a reply without a status of three digits")
	}
	_, after, found := bytes.Cut(head, contentLength)
	if !found {
		return 0, 0, fmt.Errorf("a reply of status %d without a Content-Length", status)
	}
	length, digits := number(after)
	if digits == 0 || digits > 9 {
		return 0, 0, errors.New("a reply with a Content-Length that is no number")
	}
	return status, end + len(headEnd) + length, nil
}

// number reads the decimal digits that b begins with; more than nine are not added up.
func number(b []byte) (value, digits int) {
	for digits < len(b) && b[digits] >= '0' && b[digits] <= '9' {
		if digits < 9 {
			value = value*10 + int(b[digits]-'0')
		}
		digits++
	}
	return value, digits
}
