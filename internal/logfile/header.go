package logfile

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// HeaderSize is where the first batch begins.
const HeaderSize = 128

const fieldsAt = 16

// ErrHeader: a file does not begin with a header, or it was damaged.
var ErrHeader = errors.New("its header can't be read")

// Format tells one kind of file from another. A header is
//
//	magic 8, number 4, sum 4 of the rest of the header, fields
type Format struct {
	Magic  string // 8 bytes
	Number uint32 // raised when an older taskapi can't read what a newer one writes
}

// Header returns a header with the caller's fields.
func (f Format) Header(fields ...[]byte) []byte {
	b := make([]byte, HeaderSize)
	copy(b, f.Magic)
	binary.BigEndian.PutUint32(b[8:], f.Number)
	rest := b[fieldsAt:]
	for _, field := range fields {
		rest = rest[copy(rest, field):]
	}
	binary.BigEndian.PutUint32(b[12:], headerSum(b))
	return b
}

func headerSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:12], castagnoli()), castagnoli(), b[fieldsAt:HeaderSize])
}

// Parse returns the fields of a header, and the number of the format that it has. Errors: ErrHeader.
func (f Format) Parse(b []byte) (fields []byte, number uint32, err error) {
	if len(b) < HeaderSize || string(b[:8]) != f.Magic || binary.BigEndian.Uint32(b[12:]) != headerSum(b) {
		return nil, 0, ErrHeader
	}
	return b[fieldsAt:HeaderSize], binary.BigEndian.Uint32(b[8:]), nil
}
