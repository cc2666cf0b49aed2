// Package logfile is the engine of append-only files. The state of an allocation is such a file, and so is the store
// that allocations share. The package promises that a batch is on the disk when Append returns nil; that a crash at any
// point leaves a batch in the file as a whole or not at all; that damage is found; and that a file which is rewritten
// is there, old or new, at every moment.
//
// A file is a header and batches. A batch is one change: records with a key each, and a record without a key, which
// ends the batch. All records of a batch have the same TxID, and TxIDs grow from batch to batch. The header notes how
// far the file was synced. A batch that begins behind this place and is not whole was cut off by a crash. One that
// begins before it and is not whole is damaged. Numbers are big-endian, checksums CRC-32C.
//
// The caller decides who may write, what a record's body means, and what is kept in memory.
package logfile

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

const (
	// Magic begins a record. Its first byte is in no UTF-8 text, so that records can be found behind damage.
	Magic = "\xf5TAS"
	// RecordSize is the size of a record without key and body.
	RecordSize = 26
	// MaxKey bounds a key.
	MaxKey = 4096
)

// castagnoli returns the table of checksums. A process that needs none does not make the table.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// Record is a value with its key:
//
//	magic 4, sum 4 of the rest up to the body, sum 4 of the body, size of the key 2, of the body 4, txid 8, key, body
type Record struct {
	Key  string
	TxID uint64
	Body []byte
}

// Append appends the record to b.
func (r Record) Append(b []byte) []byte {
	at := len(b)
	b = append(append(b, Magic...), 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(r.Body, castagnoli()))
	b = binary.BigEndian.AppendUint16(b, uint16(len(r.Key)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(r.Body)))
	b = binary.BigEndian.AppendUint64(b, r.TxID)
	b = append(b, r.Key...)
	binary.BigEndian.PutUint32(b[at+4:], crc32.Checksum(b[at+8:], castagnoli()))
	return append(b, r.Body...)
}

// What is wrong with a record.
var (
	// ErrNoRecord: there is no record at this place.
	ErrNoRecord = errors.New("there is no record")
	// ErrBody: its key and its TxID can be trusted, and its body is cut short or differs from what was written.
	ErrBody = errors.New("the checksum is wrong")
)

// parseHead reads the record that b begins with up to its body, and returns the sizes of both. Errors: ErrNoRecord.
func parseHead(b []byte) (r Record, head int, body int64, err error) {
	if len(b) < RecordSize || string(b[:4]) != Magic {
		return Record{}, 0, 0, ErrNoRecord
	}
	head, body = RecordSize+int(binary.BigEndian.Uint16(b[12:])), int64(binary.BigEndian.Uint32(b[14:]))
	if head > min(len(b), RecordSize+MaxKey) ||
		binary.BigEndian.Uint32(b[4:]) != crc32.Checksum(b[8:head], castagnoli()) {
		return Record{}, 0, 0, ErrNoRecord
	}
	return Record{Key: string(b[RecordSize:head]), TxID: binary.BigEndian.Uint64(b[18:])}, head, body, nil
}

// Parse reads the record that b begins with, and returns its size. Errors: ErrNoRecord, ErrBody.
func Parse(b []byte) (r Record, size int64, err error) {
	r, head, body, err := parseHead(b)
	if err != nil {
		return Record{}, 0, err
	}
	size = min(int64(head)+body, int64(len(b)))
	return r, size, r.parseBody(b[:size], head, body)
}

// parseBody reads the body of the record b, which may be cut off, and whose head was parsed. Errors: ErrBody.
func (r *Record) parseBody(b []byte, head int, body int64) error {
	if int64(len(b)-head) < body {
		return ErrBody
	}
	r.Body = b[head:]
	if binary.BigEndian.Uint32(b[8:]) != crc32.Checksum(r.Body, castagnoli()) {
		return ErrBody
	}
	return nil
}
