package disk

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/internal/table"
	"taskapi/internal/logfile"
)

// Behind the header come batches, each of which is one Commit: a logfile.Record for each write, and one without a key, which ends the batch. Their
// TxID is the Commit's index. The first batch has the entries that the log began with, and the index that the store had then. A body is
//
//	kind 1, CreateIndex 8, ModifyIndex 8, the lease's index 8, size of its owner 2, owner, value
//
// where an index of 0 is the batch's own.
const (
	kindWritten = iota
	kindDeleted
	kindDamaged // the value is not as it was written: what there was of it is kept for who can repair it, and is no value
)

const (
	bodySize = 27
	maxBody  = bodySize + cluster.MaxKeyBytes + cluster.MaxValueBytes
)

// span is where the record of an entry is.
type span struct {
	at   int64
	size uint32
}

// appendBatch appends a batch to b.
func appendBatch(b []byte, index uint64, writes []table.Write) []byte {
	for _, w := range writes {
		b = logfile.Record{Key: w.Key, TxID: index, Body: body(w)}.Append(b)
	}
	return logfile.Record{TxID: index}.Append(b)
}

func body(w table.Write) []byte {
	b := make([]byte, 1, bodySize+len(w.Lease)+len(w.Value))
	switch {
	case w.Delete:
		b[0] = kindDeleted
	case w.Damaged:
		b[0] = kindDamaged
	}
	b = binary.BigEndian.AppendUint64(b, w.CreateIndex)
	b = binary.BigEndian.AppendUint64(b, w.ModifyIndex)
	b = binary.BigEndian.AppendUint64(b, w.LeaseIndex)
	b = binary.BigEndian.AppendUint16(b, uint16(len(w.Lease)))
	return append(append(b, w.Lease...), w.Value...)
}

var errBody = errors.New("what it says of an entry makes no sense")

// parseBody reads a body. The value is part of it.
func parseBody(key string, b []byte) (table.Write, error) {
	if len(b) < bodySize || b[0] > kindDamaged {
		return table.Write{}, errBody
	}
	owner := int(binary.BigEndian.Uint16(b[25:]))
	if owner > len(b)-bodySize {
		return table.Write{}, errBody
	}
	value := b[bodySize+owner:]
	return table.Write{Key: key, Lease: string(b[bodySize:][:owner]), Value: value[:len(value):len(value)], Size: len(value), Delete: b[0] == kindDeleted,
		Damaged:     b[0] == kindDamaged,
		CreateIndex: binary.BigEndian.Uint64(b[1:]), ModifyIndex: binary.BigEndian.Uint64(b[9:]), LeaseIndex: binary.BigEndian.Uint64(b[17:])}, nil
}

// scanner reads batches one after the other, with a record in memory at a time.
type scanner struct {
	r      *bufio.Reader
	at     int64 // of the next record
	buffer []byte
}

const readAhead = 32 << 10

func newScanner(f io.ReaderAt, from, to int64) *scanner {
	return &scanner{r: bufio.NewReaderSize(io.NewSectionReader(f, from, to-from), readAhead), at: from}
}

// batch returns the next batch, without the values. Errors: io.EOF at the end.
func (s *scanner) batch() (index uint64, writes []table.Write, spans []span, err error) {
	for {
		r, size, err := s.record()
		switch {
		case errors.Is(err, io.EOF) && index == 0:
			return 0, nil, nil, io.EOF
		case errors.Is(err, io.EOF):
			return 0, nil, nil, errors.New("the last change has no end")
		case err != nil:
			return 0, nil, nil, fmt.Errorf("byte %d: %w", s.at, err)
		case index != 0 && r.TxID != index || r.TxID == 0:
			return 0, nil, nil, fmt.Errorf("byte %d: a record of change %d in change %d", s.at, r.TxID, index)
		}
		index = r.TxID
		if r.Key == "" {
			s.at += int64(size)
			return index, writes, spans, nil
		}
		w, err := parseBody(r.Key, r.Body)
		if err != nil {
			return 0, nil, nil, fmt.Errorf("byte %d: %w", s.at, err)
		}
		w.Value = nil
		writes, spans = append(writes, w), append(spans, span{s.at, size})
		s.at += int64(size)
	}
}

// record returns the next record, whose body is valid until the next call.
func (s *scanner) record() (r logfile.Record, size uint32, err error) {
	head, err := s.r.Peek(logfile.RecordSize + logfile.MaxKey)
	if len(head) == 0 {
		if errors.Is(err, io.EOF) {
			return r, 0, io.EOF
		}
		return r, 0, err
	}
	_, n, length, err := logfile.ParseHead(head)
	if err != nil {
		return r, 0, err
	}
	if length > maxBody {
		return r, 0, errBody
	}
	size = uint32(n) + uint32(length)
	if int(size) > cap(s.buffer) {
		s.buffer = make([]byte, size)
	}
	if _, err := io.ReadFull(s.r, s.buffer[:size]); err != nil {
		return r, 0, errors.New("it is cut short")
	}
	r, _, err = logfile.Parse(s.buffer[:size])
	return r, size, err
}

// errRecord is in the error of a record that could be read, and is not as it was written.
var errRecord = errors.New("its record is damaged")

// readEntry reads the record of an entry into a buffer, of which its value is then a part. Errors: errRecord.
func readEntry(f io.ReaderAt, e *table.Entry[span], buffer *[]byte) (w table.Write, err error) {
	if int(e.Value.size) > cap(*buffer) {
		*buffer = make([]byte, e.Value.size)
	}
	b := (*buffer)[:e.Value.size]
	if _, err := f.ReadAt(b, e.Value.at); err != nil {
		return w, fmt.Errorf("byte %d: %w", e.Value.at, err)
	}
	r, _, err := logfile.Parse(b)
	if err == nil {
		w, err = parseBody(r.Key, r.Body)
	}
	if err == nil && (r.Key != e.Key || w.Delete || w.Size != e.Size || w.ModifyIndex != e.ModifyIndex && r.TxID != e.ModifyIndex) {
		err = errBody
	}
	if err != nil {
		return w, fmt.Errorf("byte %d: %w: %w", e.Value.at, errRecord, err)
	}
	return w, nil
}
