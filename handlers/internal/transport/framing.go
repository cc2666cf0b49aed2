package transport

import (
	"bytes"
	"strconv"
	"sync/atomic"
)

// framing follows the requests on a connection byte by byte. It looks for one thing that net/http hides: a head that
// gives the length of its body twice, by Content-Length and by Transfer-Encoding. net/http drops the first, but a proxy
// between client and server may have used it (RFC 9112, section 6.1). Transfer-Encoding in HTTP/1.0 is no better.
//
// net/http refuses requests that are wrong in another way and closes the connection, so it does not matter how framing
// reads the rest.
type framing struct {
	bad atomic.Int64 // the number of the first head that is ambiguous; 0 for none

	part   framePart
	heads  int64  // that have begun
	left   uint64 // bytes of the body, or of the chunk
	line   []byte // the beginning of a line whose end has not come
	begun  bool   // the request line has come
	empty  bool   // an empty line has come before it
	old    bool   // the head is HTTP/1.0's
	length bool   // it has Content-Length
	coding bool   // it has Transfer-Encoding
	wrong  bool   // its Content-Length is no number
}

// framePart is the part of a request that comes next.
type framePart uint8

const (
	inHead framePart = iota
	inBody
	inChunkSize
	inChunk
	inTrailer
	unknown
)

// maxLine is longer than what net/http reads of a head.
const maxLine = 32 << 10

func (f *framing) feed(b []byte) {
	for len(b) > 0 && f.part != unknown {
		switch f.part {
		case inBody, inChunk:
			n := min(uint64(len(b)), f.left)
			b = b[n:]
			f.left -= n
			switch {
			case f.left > 0:
			case f.part == inChunk:
				f.part = inChunkSize // with the line's end, which is counted
			default:
				f.part = inHead
			}
		default:
			end := bytes.IndexByte(b, '\n')
			if end < 0 {
				f.keep(b)
				return
			}
			line := b[:end]
			b = b[end+1:]
			if len(f.line) > 0 {
				f.keep(line)
				line = f.line
			}
			f.read(bytes.TrimSuffix(line, []byte("\r")))
			f.line = f.line[:0]
		}
	}
}

// between reports whether the next byte begins a request, with no empty line before it: net/http may refuse that one.
func (f *framing) between() bool { return f.part == inHead && !f.begun && !f.empty && len(f.line) == 0 }

// keep keeps the beginning of a line.
func (f *framing) keep(b []byte) {
	if len(f.line)+len(b) > maxLine {
		f.part = unknown
		return
	}
	f.line = append(f.line, b...)
}

// read reads a whole line.
func (f *framing) read(line []byte) {
	switch {
	case f.part == inChunkSize:
		f.chunkSize(line)
	case f.part == inTrailer:
		if len(line) == 0 {
			f.part = inHead
		}
	case !f.begun: // between requests
		f.empty = len(line) == 0
		if !f.empty { // net/http passes over empty lines, too
			f.begun, f.old = true, bytes.HasSuffix(line, []byte(" HTTP/1.0"))
			f.length, f.coding, f.wrong, f.left = false, false, false, 0
			f.heads++
		}
	case len(line) == 0:
		f.headRead()
	default:
		f.header(line)
	}
}

func (f *framing) header(line []byte) {
	if c := line[0] | 0x20; c != 'c' && c != 't' { // most lines
		return
	}
	name, value, _ := bytes.Cut(line, []byte(":"))
	switch {
	case bytes.EqualFold(name, []byte("Transfer-Encoding")):
		f.coding = true
	case bytes.EqualFold(name, []byte("Content-Length")):
		f.length = true
		n, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 63)
		f.left, f.wrong = n, f.wrong || err != nil
	}
}

func (f *framing) headRead() {
	f.begun = false
	switch {
	case f.coding && (f.length || f.old):
		f.part = unknown
		f.bad.Store(f.heads)
	case f.wrong:
		f.part = unknown
	case f.coding:
		f.part = inChunkSize
	case f.left > 0:
		f.part = inBody
	}
}

func (f *framing) chunkSize(line []byte) {
	digits, _, _ := bytes.Cut(line, []byte(";"))
	n, err := strconv.ParseUint(string(bytes.TrimSpace(digits)), 16, 62)
	switch {
	case err != nil:
		f.part = unknown
	case n == 0:
		f.part = inTrailer
	default:
		f.part, f.left = inChunk, n+2 // with the line's end
	}
}
