package disk

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/internal/table"
	"taskapi/internal/logfile"
)

const (
	rewriteFloor = 256 << 10
	recordCost   = bodySize + logfile.RecordSize
)

// maxLog bounds a log that can't be rewritten. One that can be stays shorter.
const maxLog = 4 * cluster.MaxBytes

// makeRoom rewrites the log, under the lock, when a number of bytes more would make it too long. A log gets there when
// every rewriting has failed for long.
func (s *Store) makeRoom(more int) error {
	s.mu.RLock()
	end := s.head.end
	s.mu.RUnlock()
	if end+int64(more) <= s.maxLog {
		return nil
	}
	if time.Since(s.tooLong.at) > tooLongPause {
		s.tooLong.err = s.compact()
		s.tooLong.at = time.Now()
	}
	if err := s.tooLong.err; err != nil {
		return fmt.Errorf("%w: %s: it has grown too long, since it can't be rewritten: %w%s", cluster.ErrUnavailable,
			s.logPath(), err, logfile.Remedy(err))
	}
	return nil
}

// tooLongPause is the least time between two attempts to rewrite a log that is too long: each reads all of it.
const tooLongPause = time.Second

// compact rewrites the log under the lock.
func (s *Store) compact() error {
	s.mu.RLock()
	entries, index := slices.Clone(s.table.Entries()), s.table.Index
	s.mu.RUnlock()
	err := s.rewrite(entries, index)
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(err, s.advanceLocked())
}

// rewrite puts a log with these entries in the place of the log.
func (s *Store) rewrite(entries []*entry, index uint64) error {
	head := header{end: logfile.HeaderSize, index: index, base: index, boot: s.boot}
	f, err := logfile.Replace(s.logPath(), func(f *os.File) error { return s.fill(f, entries, &head) })
	if err != nil {
		return err
	}
	// When the sync fails, the header does not note the name, and the next Commit syncs it first.
	if logfile.SyncName(s.logPath()) == nil {
		head.named = true
		_, _ = f.WriteAt(head.encode(), 0) // likewise
	}
	return f.Close()
}

// fill writes a log, and notes its end in the header.
func (s *Store) fill(f *os.File, entries []*entry, head *header) error {
	w := bufio.NewWriterSize(f, 32<<10)
	_, _ = w.Write(make([]byte, logfile.HeaderSize)) // Flush returns the error of any Write
	var b, read []byte
	for _, e := range entries {
		write, err := readEntry(s.log, e, &read)
		if errors.Is(err, errRecord) {
			write, err = salvage(e, read), nil
		}
		if err != nil { // the disk may return the record another time
			return err
		}
		write.CreateIndex, write.ModifyIndex = e.CreateIndex, e.ModifyIndex
		b = logfile.Record{Key: e.Key, TxID: head.index, Body: body(write)}.Append(b[:0])
		_, _ = w.Write(b)
		head.end += int64(len(b))
	}
	b = appendBatch(b[:0], head.index, nil)
	_, _ = w.Write(b)
	head.end += int64(len(b))
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := f.WriteAt(head.encode(), 0)
	return err
}

// salvage returns a write that carries along an entry whose record is damaged. It has what the table knows of the entry
// and the bytes where its value was, and is marked as damaged.
func salvage(e *entry, record []byte) table.Write {
	return table.Write{Meta: e.Meta, Value: record[len(record)-e.Size:], Damaged: true}
}

// recover cuts the log off behind its last whole batch, under the lock. The header notes where that is, unless the
// machine has failed since: headers are not synced, and batches are.
func (s *Store) recover() error {
	if s.head.boot == s.boot && s.head.named {
		return nil
	}
	if err := logfile.SyncName(s.logPath()); err != nil {
		return unavailable(s.dir, err)
	}
	head := s.head
	head.named = true
	if head.boot != s.boot {
		info, err := s.log.Stat()
		if err != nil {
			return unavailable(s.logPath(), err)
		}
		scan := logfile.Scan(s.log, head.end, info.Size())
		for {
			index, err := new(changes).batch(scan)
			if err != nil || index != head.index+1 { // a crash has cut it off
				break
			}
			head.index, head.end = index, scan.At
		}
		head.boot = s.boot
	}
	switch err := logfile.Settle(s.log, head.end, head.encode()); {
	case errors.Is(err, logfile.ErrShort):
		return s.damaged(err)
	case err != nil:
		return unavailable(s.logPath(), err)
	}
	s.head = head
	return nil
}
