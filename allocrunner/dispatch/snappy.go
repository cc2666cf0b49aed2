package dispatch

import (
	"encoding/binary"
	"errors"
)

// Nomad keeps a payload in the block format of Snappy:
// https://github.com/google/snappy/blob/main/format_description.txt. The library for Snappy makes a table at the start
// of each process, which costs more than this file.

var errNotSnappy = errors.New("it is not in the format of Snappy, or too long")

// encodeSnappy returns data as one literal: that is in the format, and a payload is short.
func encodeSnappy(data []byte) []byte {
	block := binary.AppendUvarint(nil, uint64(len(data)))
	block = append(block, 61<<2) // a literal, whose length less one follows in two bytes
	block = binary.LittleEndian.AppendUint16(block, uint16(len(data)-1))
	return append(block, data...)
}

// decodeSnappy returns the data of a block that has at most so many bytes. Errors: errNotSnappy.
func decodeSnappy(block []byte, most int) ([]byte, error) {
	size, n := binary.Uvarint(block)
	if n <= 0 || size > uint64(most) {
		return nil, errNotSnappy
	}
	block = block[n:]
	data := make([]byte, 0, size)
	// number takes a little-endian number of so many bytes from the block.
	number := func(bytes int) (x int, ok bool) {
		if len(block) < bytes {
			return 0, false
		}
		for i := range bytes {
			x |= int(block[i]) << (8 * i)
		}
		block = block[bytes:]
		return x, true
	}
	for len(block) > 0 {
		tag := int(block[0])
		block = block[1:]
		length, offset, ok := tag>>2+1, 0, true
		switch tag & 3 {
		case 0:
			if length > 60 {
				length, ok = number(length - 60)
				length++
			}
			if !ok || length > len(block) || length > int(size)-len(data) {
				return nil, errNotSnappy
			}
			data, block = append(data, block[:length]...), block[length:]
			continue
		case 1:
			offset, ok = number(1)
			length, offset = tag>>2&7+4, offset|tag&0xe0<<3
		case 2:
			offset, ok = number(2)
		case 3:
			offset, ok = number(4)
		}
		if !ok || offset == 0 || offset > len(data) || length > int(size)-len(data) {
			return nil, errNotSnappy
		}
		for range length { // what is copied may overlap its copy
			data = append(data, data[len(data)-offset])
		}
	}
	if len(data) != int(size) {
		return nil, errNotSnappy
	}
	return data, nil
}
