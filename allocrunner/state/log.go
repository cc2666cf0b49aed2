package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"taskapi/internal/logfile"
)

// A file is a log of package logfile. Its records are values by their keys: of records with the same key the last one
// counts. The record that ends a batch has as its body the version of the taskapi that wrote it. The header's fields
// are
//
//	acknowledged 8: up to where the file was synced, version of taskapi
//
// A batch that is acknowledged and not whole is damage. Behind the acknowledged ones, batches count up to the first
// that is not whole.
var format = logfile.Format{Magic: "taskapi\x00", Number: 3}

const maxFile = 256 << 20 // bytes: far more than twice what a job of 1 MiB and its tasks come to

func header(acknowledged int64, version string) []byte {
	return format.Header(binary.BigEndian.AppendUint64(nil, uint64(acknowledged)), []byte(version))
}

// readHeader returns up to where a file was synced. Errors: ErrNewer, ErrOlder; that it is damaged.
func readHeader(b []byte) (acknowledged int64, version string, err error) {
	if len(b) < logfile.HeaderSize {
		return 0, "", errors.New("the file is cut short: it has no header")
	}
	fields, number, err := format.Parse(b)
	if err != nil {
		return 0, "", err
	}
	version = string(bytes.TrimRight(fields[8:], "\x00"))
	switch {
	case number > format.Number:
		return 0, "", fmt.Errorf("%w: taskapi %s wrote it in format %d, this one reads %d", ErrNewer, version, number,
			format.Number)
	case number < format.Number:
		return 0, "", fmt.Errorf("%w (taskapi %s wrote it in format %d)", ErrOlder, version, number)
	}
	return int64(binary.BigEndian.Uint64(fields)), version, nil
}

// location is where a value is.
type location struct {
	logfile.Span
	body int // the length of the value
	txid uint64
}

// encode returns a batch for an offset of the file, and where its values will be.
func (v values) encode(txid uint64, at int64, version string) (batch []byte, live map[string]location) {
	live = map[string]location{}
	for _, key := range slices.Sorted(maps.Keys(v)) {
		from := len(batch)
		batch = logfile.Record{Key: key, TxID: txid, Body: v[key]}.Append(batch)
		live[key] = location{logfile.Span{At: at + int64(from), Size: uint32(len(batch) - from)}, len(v[key]), txid}
	}
	return logfile.Record{TxID: txid, Body: []byte(version)}.Append(batch), live
}

// contents is the content of a file.
type contents struct {
	version      string
	acknowledged int64 // where what was synced ends
	size         int64 // of the file
	values       values
	live         map[string]location
	end          int64           // of the last whole batch
	txid         uint64          // of that
	problems     []error         // the damage of the file
	damaged      map[string]bool // keys of which the last value is damaged
	stale        map[string]bool // keys of which a later value may have been damaged
}

// load reads an open file, also while another process writes it. Damage is no error here: it is noted, and the rest is
// read. Errors: ErrNotFound when the file is empty; ErrNewer, ErrOlder, ErrFile; ErrDamaged for a file that is too
// long.
func load(file *os.File, path string) (*contents, error) {
	readable := &patient{file: file}
	head := make([]byte, logfile.HeaderSize)
	n, _ := readable.ReadAt(head, 0) // before the size is looked up: the file then has all that the header acknowledges
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a file")
	}
	switch {
	case err != nil:
		return nil, fileError(path, err)
	case info.Size() < smallest && isZero(file, info.Size()): // or a crash of the machine has left it so
		return nil, fmt.Errorf("%s: %w", path, ErrNotFound)
	case info.Size() > maxFile:
		return nil, damagedError(path, fmt.Sprintf("it has %d bytes, and a state has at most %d", info.Size(), maxFile))
	}
	c := &contents{values: values{}, live: map[string]location{}, damaged: map[string]bool{}, stale: map[string]bool{},
		end: logfile.HeaderSize, size: info.Size()}
	c.acknowledged, c.version, err = readHeader(head[:n])
	switch {
	case errors.Is(err, ErrNewer), errors.Is(err, ErrOlder):
		return nil, fmt.Errorf("%s: %w", path, err)
	case err != nil:
		c.problems = append(c.problems, err)
		c.acknowledged = c.size // all of the file may have been acknowledged
	}
	c.batches(readable)
	if c.acknowledged > c.size || c.acknowledged < logfile.HeaderSize {
		c.unreadable("the file is cut short: it has %d bytes of %d", c.size, c.acknowledged)
	}
	c.problems = append(readable.problems, c.problems...)
	return c, nil
}

// smallest is less than what a file of an allocation that has begun has, and more than what DB.begin writes.
const smallest = 512

// isZero reports whether a small file has nothing.
func isZero(file io.ReaderAt, size int64) bool {
	all := make([]byte, size)
	n, err := file.ReadAt(all, 0)
	return n == len(all) && (err == nil || errors.Is(err, io.EOF)) && len(bytes.Trim(all, "\x00")) == 0
}

// unreadable notes damage that may have hit any value.
func (c *contents) unreadable(format string, args ...any) {
	c.problems = append(c.problems, fmt.Errorf(format, args...))
	for key := range c.values {
		c.stale[key] = true
	}
}

// batches reads the batches. Behind the acknowledged ones, it stops at the first batch that is not whole: a crash has
// left it. A damaged value does no harm when there is a later one.
func (c *contents) batches(file io.ReaderAt) {
	type value struct {
		location
		body []byte
	}
	batch := map[string]value{} // the values of a batch whose end has not been read yet
	add := func() {
		for key, v := range batch {
			if v.txid < c.live[key].txid { // it belongs elsewhere in the file, which is damaged
				continue
			}
			c.values[key], c.live[key] = v.body, v.location
			delete(c.stale, key)
			delete(c.damaged, key)
		}
		clear(batch)
	}
	scan := logfile.Scan(file, logfile.HeaderSize, c.size)
scanning:
	for next := uint64(0); ; { // the batch's txid
		at := scan.At
		r, span, err := scan.Record()
		skip := errors.Is(err, logfile.ErrNoRecord)
		first := len(batch) == 0 // of a batch; a number may be missing, of a batch that failed
		if err == nil && next > 0 && r.TxID != next && (!first || r.TxID < next) && len(c.problems) == 0 {
			err = logfile.ErrNoRecord
		}
		next = r.TxID
		switch {
		case errors.Is(err, io.EOF):
			break scanning
		case err == nil && r.Key != "":
			batch[r.Key] = value{location{span, len(r.Body), r.TxID}, bytes.Clone(r.Body)}
			continue
		case err != nil && c.end >= c.acknowledged && len(c.problems) == 0:
			break scanning
		case r.Key == "" && !errors.Is(err, logfile.ErrNoRecord):
			add()
			c.end, c.txid, c.version, next = scan.At, r.TxID, string(r.Body), r.TxID+1
			if delete(c.damaged, ""); err != nil {
				c.damaged[""] = true
			}
			continue
		case errors.Is(err, logfile.ErrBody):
			delete(batch, r.Key)
			c.damaged[r.Key] = true
			continue
		}
		add()
		c.unreadable("what is at byte %d can't be read", at)
		if skip {
			scan.Skip()
		}
	}
	if len(c.problems) == 0 && c.end < c.acknowledged {
		c.unreadable("the last change has no end")
	}
	if len(c.problems) > 0 { // a value of half a batch is better than none
		add()
	}
	for _, key := range slices.Sorted(maps.Keys(c.damaged)) {
		c.problems = append(c.problems, fmt.Errorf("the checksum of %q is wrong", key))
		c.stale[key] = true
	}
}

// patient reads a file whose disk may fail. It returns zeros for blocks that can't be read.
type patient struct {
	file     io.ReaderAt
	problems []error
}

func (p *patient) ReadAt(b []byte, at int64) (n int, err error) {
	if n, err = p.file.ReadAt(b, at); err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	const block = 4096 // of most disks
	for n = 0; n < len(b); {
		from := at + int64(n)
		part := b[n:min(n+block-int(from%block), len(b))]
		read, err := p.file.ReadAt(part, from)
		switch {
		case errors.Is(err, io.EOF):
			return n + read, err
		case err != nil:
			clear(part)
			p.problems = append(p.problems, fmt.Errorf("%d bytes at %d: %w", len(part), from, err))
		}
		n += len(part)
	}
	return n, nil
}
