package disk

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"runtime"
	"strings"

	"taskapi/allocrunner/cluster"
)

// The log begins with a header. Numbers are big-endian, the sum is CRC-32C of the rest of the header:
//
//	magic 8, format 4, sum 4, end 8, index 8, base 8, boot 16, named 1, zeros
const (
	magic      = "taskapi\x02"
	format     = 1
	headerSize = 128
)

// header is what a log says of itself.
type header struct {
	end   int64  // of the last Commit that was synced: what follows is none
	index uint64 // of that Commit
	base  uint64 // the index of the entries that the log began with
	boot  bootID // of the machine's start in which the header was written: one of an earlier start may be older than what follows
	named bool   // the log's name is on the disk
}

type bootID [16]byte

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (h header) encode() []byte {
	b := make([]byte, headerSize)
	copy(b, magic)
	binary.BigEndian.PutUint32(b[8:], format)
	binary.BigEndian.PutUint64(b[16:], uint64(h.end))
	binary.BigEndian.PutUint64(b[24:], h.index)
	binary.BigEndian.PutUint64(b[32:], h.base)
	copy(b[40:], h.boot[:])
	if h.named {
		b[56] = 1
	}
	binary.BigEndian.PutUint32(b[12:], headerSum(b))
	return b
}

func headerSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, b[16:headerSize])
}

var errHeader = errors.New("its header can't be read")

func decodeHeader(b []byte) (header, error) {
	if string(b[:8]) != magic || binary.BigEndian.Uint32(b[12:]) != headerSum(b) {
		return header{}, errHeader
	}
	if f := binary.BigEndian.Uint32(b[8:]); f != format {
		return header{}, fmt.Errorf("it has format %d, and this taskapi knows %d: run the taskapi that wrote it, or a newer one", f, format)
	}
	h := header{end: int64(binary.BigEndian.Uint64(b[16:])), index: binary.BigEndian.Uint64(b[24:]), base: binary.BigEndian.Uint64(b[32:]),
		named: b[56] == 1}
	copy(h.boot[:], b[40:])
	return h, nil
}

// headerTries is how often a header is read again that another process may be writing.
const headerTries = 100

// readHeader reads the header of an open log.
func readHeader(f *os.File) (h header, err error) {
	var b [headerSize]byte
	for range headerTries {
		if _, err := f.ReadAt(b[:], 0); err != nil {
			return header{}, fmt.Errorf("%w: it is cut short: %w", errHeader, err)
		}
		if h, err = decodeHeader(b[:]); !errors.Is(err, errHeader) {
			return h, err
		}
		runtime.Gosched()
	}
	return h, err
}

// thisBoot identifies the machine's present start.
func thisBoot() (id bootID, err error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err == nil {
		_, err = hex.Decode(id[:], []byte(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", "")))
	}
	if err != nil {
		return id, fmt.Errorf("%w: identify the machine's start: %w", cluster.ErrUnavailable, err)
	}
	return id, nil
}
