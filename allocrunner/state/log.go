package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"slices"

	"taskapi/internal/logfile"
)

// A file is a header and batches, each of which is one change: a record for each value, and one without a key, which ends the batch. Of
// records with the same key the last counts. Numbers are big-endian, checksums CRC-32C.
//
//	header   magic 8, format 4, sum 4 of the header without itself, acknowledged 8: up to where the file was synced, version of taskapi
//	record   see logfile.Record
//
// The header is written after the sync of each batch. So a batch that is not whole was being written when the machine failed if it begins
// where the acknowledged ones end, and is damaged if it begins before. Records can be found behind a damaged one, since a record's magic is in no JSON.
const (
	fileMagic  = "taskapi\x00"
	headerSize = 128
	maxFile    = 256 << 20 // bytes: far more than twice what a job of 1 MiB and its tasks come to
	headerTail = 16        // where what the sum is of goes on
)

// format is the layout of the file. It is raised when an older taskapi could not read what a newer one writes.
const format = 3

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func header(acknowledged int64, version string) []byte {
	b := make([]byte, headerSize)
	copy(b, fileMagic)
	binary.BigEndian.PutUint32(b[8:], format)
	binary.BigEndian.PutUint64(b[headerTail:], uint64(acknowledged))
	copy(b[headerTail+8:], version)
	binary.BigEndian.PutUint32(b[12:], headerSum(b))
	return b
}

func headerSum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, b[headerTail:headerSize])
}

// boltMagic stands at byte 16 of a bbolt database, in the machine's byte order. The first versions of taskapi kept
// their state in one.
const boltMagic = 0xED0CDAED

// readHeader returns up to where a file was synced. Errors: ErrNewer, ErrOlder; that it is damaged.
func readHeader(b []byte) (acknowledged int64, version string, err error) {
	switch {
	case len(b) >= 20 && binary.NativeEndian.Uint32(b[16:]) == boltMagic:
		return 0, "", ErrOlder
	case len(b) < headerSize:
		return 0, "", errors.New("the file is cut short: it has no header")
	case string(b[:8]) != fileMagic || binary.BigEndian.Uint32(b[12:]) != headerSum(b):
		return 0, "", errors.New("its header can't be read")
	}
	version = string(bytes.TrimRight(b[headerTail+8:headerSize], "\x00"))
	switch number := binary.BigEndian.Uint32(b[8:]); {
	case number > format:
		return 0, "", fmt.Errorf("%w: taskapi %s wrote it in format %d, this one reads %d", ErrNewer, version, number, format)
	case number < format:
		return 0, "", fmt.Errorf("%w (taskapi %s wrote it in format %d)", ErrOlder, version, number)
	}
	return int64(binary.BigEndian.Uint64(b[headerTail:])), version, nil
}

// span is where a record is.
type span struct {
	at, size int64
	key      int // its length
	txid     uint64
}

// body returns the length of the record's body.
func (s span) body() int { return int(s.size) - logfile.RecordSize - s.key }

// lastTxID returns the highest txid in b.
func lastTxID(b []byte) (last uint64) {
	for at := bytes.Index(b, []byte(logfile.Magic)); at >= 0; at = bytes.Index(b, []byte(logfile.Magic)) {
		f, _, _, _ := logfile.ParseHead(b[at:])
		last, b = max(last, f.TxID), b[at+1:]
	}
	return last
}

// readRecord reads a record of an open file.
func readRecord(file io.ReaderAt, s span) (logfile.Record, error) {
	b := make([]byte, s.size)
	if _, err := file.ReadAt(b, s.at); err != nil {
		return logfile.Record{}, err
	}
	f, _, err := logfile.Parse(b)
	return f, err
}

// encode returns a batch that lies at an offset, and where its values are.
func (v values) encode(txid uint64, at int64, version string) (batch []byte, live map[string]span) {
	live = map[string]span{}
	for _, key := range slices.Sorted(maps.Keys(v)) {
		from := len(batch)
		batch = logfile.Record{Key: key, TxID: txid, Body: v[key]}.Append(batch)
		live[key] = span{at + int64(from), int64(len(batch) - from), len(key), txid}
	}
	return logfile.Record{TxID: txid, Body: []byte(version)}.Append(batch), live
}

// contents are what a file has.
type contents struct {
	version      string
	acknowledged int64 // where what was synced ends
	values       values
	live         map[string]span
	end          int64           // of the last whole batch
	txid         uint64          // of that
	taken        uint64          // the highest of what a crash has left behind it
	problems     []error         // what is wrong with the file
	damaged      map[string]bool // keys of which the last value is damaged
	stale        map[string]bool // those of which that is not known, and may be so
}

// parse reads a file. Errors: ErrNewer, ErrOlder. Damage is no error here: it is noted, and the rest is read. It does
// work in proportion to the length of data, whatever is in it.
func parse(data []byte) (*contents, error) {
	c := &contents{values: values{}, live: map[string]span{}, damaged: map[string]bool{}, stale: map[string]bool{}, end: headerSize}
	var err error
	c.acknowledged, c.version, err = readHeader(data)
	switch {
	case errors.Is(err, ErrNewer), errors.Is(err, ErrOlder):
		return nil, err
	case err != nil:
		c.problems = append(c.problems, err)
		c.acknowledged = int64(len(data)) // all that is there may have been
	}
	c.batches(data)
	if c.acknowledged > int64(len(data)) || c.acknowledged < headerSize {
		c.unreadable("the file is cut short: it has %d bytes of %d", len(data), c.acknowledged)
	}
	return c, nil
}

// unreadable notes damage of which it is not known what it has taken.
func (c *contents) unreadable(format string, args ...any) {
	c.problems = append(c.problems, fmt.Errorf(format, args...))
	for key := range c.values {
		c.stale[key] = true
	}
}

// batches reads the batches. Of those that were not acknowledged, none counts from the first on that is not whole: they are what a crash has
// left. A damaged value of which there is a later one does no harm.
func (c *contents) batches(data []byte) {
	batch := map[string]span{} // the values of the one that has no end yet
	add := func() {
		for key, s := range batch {
			if s.txid < c.live[key].txid { // it belongs elsewhere, and the file is damaged
				continue
			}
			c.values[key], c.live[key] = data[s.at+s.size-int64(s.body()):s.at+s.size], s
			delete(c.stale, key)
			delete(c.damaged, key)
		}
		clear(batch)
	}
	var next uint64 // the batch's txid
	for at := int64(min(headerSize, len(data))); at < int64(len(data)); {
		f, size, err := logfile.Parse(data[at:])
		first := len(batch) == 0 // of a batch: numbers that were given to what was never acknowledged are left out
		if err == nil && next > 0 && f.TxID != next && (!first || f.TxID < next) && len(c.problems) == 0 {
			err = logfile.ErrNoRecord
		}
		next = f.TxID
		switch {
		case err == nil && f.Key != "":
			batch[f.Key] = span{at, size, len(f.Key), f.TxID}
		case err != nil && c.end >= c.acknowledged && len(c.problems) == 0:
			c.taken = lastTxID(data[c.end:])
			at = int64(len(data))
		case f.Key == "" && !errors.Is(err, logfile.ErrNoRecord):
			add()
			c.end, c.txid, c.version, next = at+size, f.TxID, string(f.Body), f.TxID+1
			if delete(c.damaged, ""); err != nil {
				c.damaged[""] = true
			}
		case errors.Is(err, logfile.ErrBody):
			delete(batch, f.Key)
			c.damaged[f.Key] = true
		default:
			add()
			c.unreadable("what is at byte %d can't be read", at)
			if size = int64(bytes.Index(data[at+1:], []byte(logfile.Magic))) + 1; size == 0 {
				size = int64(len(data)) - at
			}
		}
		at += size
	}
	if len(c.problems) == 0 && c.end < c.acknowledged {
		c.unreadable("the last change has no end")
	}
	if len(c.problems) > 0 { // each value that is whole is better than none
		add()
	}
	for _, key := range slices.Sorted(maps.Keys(c.damaged)) {
		c.problems = append(c.problems, fmt.Errorf("the checksum of %q is wrong", key))
		c.stale[key] = true
	}
}

// load reads an open file. Errors: ErrNotFound when it is empty; ErrNewer, ErrOlder, ErrFile.
func load(file *os.File, path string) (*contents, error) {
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a file")
	}
	if err != nil {
		return nil, fileError(path, err)
	}
	if info.Size() == 0 {
		return nil, fmt.Errorf("%s: %w", path, ErrNotFound)
	}
	if info.Size() > maxFile {
		return nil, damagedError(path, fmt.Sprintf("it has %d bytes, and a state has at most %d", info.Size(), maxFile))
	}
	data, problems := readAll(file, info.Size())
	c, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	c.problems = append(problems, c.problems...)
	return c, nil
}
