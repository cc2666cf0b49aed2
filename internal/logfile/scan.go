package logfile

import (
	"bufio"
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
	r      *bufio.Reader
	buffer []byte
}

const readAhead = 32 << 10

// Scan returns a scanner for the part of a file between two places.
func Scan(f io.ReaderAt, from, to int64) *Scanner {
	to = max(from, to)
	size := min(readAhead, max(to-from, RecordSize+MaxKey)) // mostly there is one small batch
	return &Scanner{At: from, end: to, r: bufio.NewReaderSize(io.NewSectionReader(f, from, to-from), int(size))}
}

// Record returns the next record. Its body is valid until the next call. Errors: io.EOF; ErrBody; ErrNoRecord, after
// which only Skip moves the scanner on; the file's.
func (s *Scanner) Record() (r Record, span Span, err error) {
	head, err := s.r.Peek(RecordSize + MaxKey)
	if len(head) == 0 || err != nil && !errors.Is(err, io.EOF) {
		return r, span, err
	}
	r, n, body, err := parseHead(head)
	if err != nil {
		return r, span, err
	}
	size := min(int64(n)+body, s.end-s.At) // a cut off record ends with the file
	whole := head
	if size > int64(len(head)) {
		if whole, err = s.large(size); err != nil {
			return r, span, err
		}
	} else {
		_, _ = s.r.Discard(int(size)) // it can't fail: Peek has read as much. The bytes stay until the next read
	}
	span = Span{s.At, uint32(size)}
	s.At += size
	return r, span, r.parseBody(whole[:size], n, body)
}

// large reads the bytes of a record that is larger than Peek's buffer.
func (s *Scanner) large(size int64) ([]byte, error) {
	for n := int64(0); n < size; { // the size may be a lie: there is only as much memory as there is file
		next := min(size, max(2*n, readAhead))
		s.buffer = append(s.buffer[:n], make([]byte, next-n)...)
		if _, err := io.ReadFull(s.r, s.buffer[n:]); err != nil {
			return nil, err
		}
		n = next
	}
	return s.buffer, nil
}

// Skip moves on from a place without a record to the next one that looks like the beginning of a record, or to the end.
func (s *Scanner) Skip() {
	s.discard(1)
	for {
		ahead, err := s.r.Peek(s.r.Size())
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

func (s *Scanner) discard(n int) {
	n, _ = s.r.Discard(n) // an error comes back from the next Record
	s.At += int64(n)
}

// Batch reads the next batch, calls visit with each of its records, and returns its TxID. Errors: io.EOF behind the
// last batch; the damage of the batch, with its byte; those of visit.
func (s *Scanner) Batch(visit func(Record, Span) error) (txid uint64, err error) {
	for {
		at := s.At
		r, span, err := s.Record()
		switch {
		case errors.Is(err, io.EOF) && txid == 0:
			return 0, io.EOF
		case errors.Is(err, io.EOF):
			return 0, errors.New("the last change has no end")
		case err == nil && (txid != 0 && r.TxID != txid || r.TxID == 0):
			err = fmt.Errorf("a record of change %d in change %d", r.TxID, txid)
		case err == nil && r.Key == "":
			return r.TxID, nil
		case err == nil:
			txid = r.TxID
			err = visit(r, span)
		}
		if err != nil {
			return 0, fmt.Errorf("byte %d: %w", at, err)
		}
	}
}
