package logfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Span is where a record is.
type Span struct {
	At   int64
	Size uint32
}

// Read reads the record of a span into a buffer, which it replaces by a larger one when needed. The record's body is a
// part of the buffer. Errors: the file's, and those of Parse.
func (s Span) Read(f io.ReaderAt, buffer *[]byte) (Record, error) {
	*buffer = grown(*buffer, int(s.Size))
	if _, err := f.ReadAt(*buffer, s.At); err != nil {
		return Record{}, err
	}
	r, _, err := Parse(*buffer)
	return r, err
}

// grown returns a buffer of a size: the given one if it is large enough.
func grown(buffer []byte, size int) []byte {
	if size > cap(buffer) {
		return make([]byte, size)
	}
	return buffer[:size]
}

// Scanner reads records one after the other, and keeps one in memory at a time.
type Scanner struct {
	At     int64 // of the next record
	end    int64
	f      io.ReaderAt
	ahead  []byte // what has been read from At on, a part of buffer
	buffer []byte
}

const readAhead = 32 << 10

// Scan returns a scanner for the part of a file between two places.
func Scan(f io.ReaderAt, from, to int64) *Scanner {
	s := &Scanner{}
	s.Reset(f, from, to)
	return s
}

// Reset has the scanner read another part, or another file. It keeps the buffer.
func (s *Scanner) Reset(f io.ReaderAt, from, to int64) {
	to = max(from, to)
	s.At, s.end, s.f, s.ahead = from, to, f, nil
	size := min(readAhead, max(to-from, RecordSize+MaxKey)) // mostly there is one small batch
	s.buffer = grown(s.buffer, int(size))
	s.buffer = s.buffer[:cap(s.buffer)]
}

// peek returns the next n bytes, which stay until the next call. Errors: io.EOF, with fewer bytes, at the end of the
// part; the file's.
func (s *Scanner) peek(n int) ([]byte, error) {
	for len(s.ahead) < n {
		left := s.end - s.At - int64(len(s.ahead))
		if left <= 0 {
			return s.ahead, io.EOF
		}
		if n > len(s.buffer) { // it may be a lie: there is only as much memory as there is file
			s.buffer = append(make([]byte, 0, min(n, 2*len(s.buffer))), s.ahead...)
			s.buffer = s.buffer[:cap(s.buffer)]
		} else {
			copy(s.buffer, s.ahead)
		}
		have := len(s.ahead)
		room := s.buffer[have:min(int64(len(s.buffer)), int64(have)+left)]
		read, err := s.f.ReadAt(room, s.At+int64(have))
		if s.ahead = s.buffer[:have+read]; read < len(room) {
			return s.ahead[:min(n, len(s.ahead))], err
		}
	}
	return s.ahead[:n], nil
}

// discard moves on by bytes that peek has returned.
func (s *Scanner) discard(n int) {
	s.At += int64(n)
	s.ahead = s.ahead[n:]
}

// Record returns the next record. Its body is valid until the next call. Errors: io.EOF; ErrBody; ErrNoRecord, after
// which only Skip moves the scanner on; the file's.
func (s *Scanner) Record() (r Record, span Span, err error) {
	head, err := s.peek(RecordSize + MaxKey)
	if len(head) == 0 || err != nil && !errors.Is(err, io.EOF) {
		return r, span, err
	}
	r, n, body, err := parseHead(head)
	if err != nil {
		return r, span, err
	}
	size := min(int64(n)+body, s.end-s.At) // a cut off record ends with the part
	whole, err := s.peek(int(size))
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return r, span, err
	}
	span = Span{s.At, uint32(size)}
	s.discard(int(size))
	return r, span, r.parseBody(whole, n, body)
}

// Skip moves on from a place without a record to the next one that looks like the beginning of a record, or to the end.
func (s *Scanner) Skip() {
	ahead, _ := s.peek(1)
	s.discard(len(ahead))
	for {
		ahead, err := s.peek(len(s.buffer))
		switch at := bytes.Index(ahead, []byte(Magic)); {
		case at >= 0:
			s.discard(at)
			return
		case err != nil: // it comes back from the next Record
			s.discard(len(ahead))
			return
		}
		s.discard(len(ahead) - len(Magic) + 1) // the last bytes may begin a record
	}
}

// Batch reads the next batch, calls visit with each of its records, and returns its TxID. Errors: io.EOF behind the
// last batch; the damage of the batch, with its byte; those of visit.
func (s *Scanner) Batch(visit func(Record, Span) error) (txid uint64, err error) {
	for {
		at := s.At
		r, span, err := s.Record()
		switch {
		case err != nil && errors.Is(err, io.EOF):
			if txid != 0 {
				return 0, errors.New("the last change has no end")
			}
			return 0, io.EOF
		case err != nil:
		case r.TxID != txid && txid != 0 || r.TxID == 0:
			err = fmt.Errorf("a record of change %d in change %d", r.TxID, txid)
		case r.Key == "":
			return r.TxID, nil
		default:
			txid = r.TxID
			err = visit(r, span)
		}
		if err != nil {
			return 0, fmt.Errorf("byte %d: %w", at, err)
		}
	}
}
