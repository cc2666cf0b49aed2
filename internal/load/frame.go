package load

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

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
	line, ok := bytes.CutPrefix(b[:end+2], statusPrefix)
	if !ok {
		return 0, 0, errors.New("a reply that does not begin with HTTP/1.1")
	}
	if status, err = strconv.Atoi(string(line[:min(3, len(line))])); err != nil || status < 100 || status > 599 {
		return 0, 0, errors.New("a reply without a status of three digits")
	}
	_, after, found := bytes.Cut(line, contentLength)
	if !found {
		return 0, 0, fmt.Errorf("a reply of status %d without a Content-Length", status)
	}
	after, _, _ = bytes.Cut(after, headEnd[:2])
	length, err := strconv.ParseUint(string(after), 10, 30)
	if err != nil {
		return 0, 0, errors.New("a reply with a Content-Length that is no number")
	}
	return status, end + len(headEnd) + int(length), nil
}
