package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"taskapi/allocrunner/cluster/internal/table"
	"taskapi/internal/logfile"
)

// Each batch of the log is one Commit, with a record for each write. Its TxID is the Commit's index. The first batch
// has the entries that the log began with, and the index that the store had then. A record's body is
//
//	kind 1, CreateIndex 8, ModifyIndex 8, the lease's index 8, size of its owner 2, owner, value
//
// where an index of 0 is the batch's own.
const (
	kindWritten = iota
	kindDeleted
	kindDamaged // the value was damaged: its bytes are kept, so that a person can repair it, and are never returned
)

const bodySize = 27

// entry is an entry whose value lies in the log.
type entry = table.Entry[logfile.Span]

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

var errBody = errors.New("a record of an entry in it is invalid")

// parseBody reads a body. The value that it returns is a part of b.
func parseBody(key string, b []byte) (table.Write, error) {
	if len(b) < bodySize || b[0] > kindDamaged {
		return table.Write{}, errBody
	}
	owner := int(binary.BigEndian.Uint16(b[25:]))
	if owner > len(b)-bodySize {
		return table.Write{}, errBody
	}
	value := b[bodySize+owner:]
	return table.Write{
		Meta: table.Meta{Key: key, Lease: string(b[bodySize:][:owner]), LeaseIndex: binary.BigEndian.Uint64(b[17:]),
			CreateIndex: binary.BigEndian.Uint64(b[1:]), ModifyIndex: binary.BigEndian.Uint64(b[9:]), Size: len(value)},
		Value: slices.Clip(value), Delete: b[0] == kindDeleted, Damaged: b[0] == kindDamaged,
	}, nil
}

// changes are those of the batches that were read, without their values.
type changes struct {
	all  []*table.Change[logfile.Span]
	slab []table.Change[logfile.Span] // a part of them: one allocation for many
}

// maxSlab bounds how many changes stay in memory for one that is still an entry.
const maxSlab = 256

// batch adds the changes of a log's next batch, and returns its index. Errors: io.EOF at the end.
func (c *changes) batch(scan *logfile.Scanner) (index uint64, err error) {
	return scan.Batch(func(r logfile.Record, span logfile.Span) error {
		w, err := parseBody(r.Key, r.Body)
		if len(c.slab) == cap(c.slab) {
			c.slab = make([]table.Change[logfile.Span], 0, min(len(c.all)+1, maxSlab))
		}
		c.slab = append(c.slab, table.Change[logfile.Span]{
			Entry: entry{Meta: w.Meta, Value: span}, Index: r.TxID, Delete: w.Delete})
		c.all = append(c.all, &c.slab[len(c.slab)-1])
		return err
	})
}

// errRecord: a record could be read, and is damaged.
var errRecord = errors.New("its record is damaged")

// readEntry reads the record of an entry into a buffer. The value that it returns is a part of the buffer. Errors:
// errRecord.
func readEntry(f io.ReaderAt, e *entry, buffer *[]byte) (w table.Write, err error) {
	r, err := e.Value.Read(f, buffer)
	if err != nil && !errors.Is(err, logfile.ErrNoRecord) && !errors.Is(err, logfile.ErrBody) {
		return w, fmt.Errorf("byte %d: %w", e.Value.At, err)
	}
	if err == nil {
		w, err = parseBody(r.Key, r.Body)
	}
	if err == nil && (r.Key != e.Key || w.Delete || w.Size != e.Size ||
		w.ModifyIndex != e.ModifyIndex && r.TxID != e.ModifyIndex) {
		err = errBody
	}
	if err != nil {
		return w, fmt.Errorf("byte %d: %w: %w", e.Value.At, errRecord, err)
	}
	return w, nil
}
