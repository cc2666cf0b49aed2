package disk

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/internal/table"
	"taskapi/internal/logfile"
)

// The log is rewritten when it is so many times as long as what is valid in it, and at least so long.
const (
	rewriteFactor = 2
	rewriteFloor  = 256 << 10
	recordCost    = bodySize + logfile.RecordSize
)

// compactIfLong rewrites the log, under the lock, if it is long. When it can't, the log is as good as before, and is tried again when it has grown
// by the floor.
func (s *store) compactIfLong() {
	s.mu.RLock()
	size, valid := s.head.end, int64(s.table.Bytes()+s.table.Len()*recordCost)
	s.mu.RUnlock()
	if size < max(rewriteFloor, rewriteFactor*valid, s.retry) {
		return
	}
	s.retry = 0
	if err := s.compact(); err != nil {
		s.retry = size + rewriteFloor
	}
}

// maxLog is more than a log has that can be rewritten.
const maxLog = 4 * cluster.MaxBytes

// makeRoom rewrites the log, under the lock, if so many bytes more would make it too long. A log comes there when it could not be rewritten for long.
func (s *store) makeRoom(more int) error {
	s.mu.RLock()
	end := s.head.end
	s.mu.RUnlock()
	if end+int64(more) <= maxLog {
		return nil
	}
	if time.Since(s.tooLong.at) > tooLongPause {
		s.tooLong.err = s.compact()
		s.tooLong.at = time.Now()
	}
	if err := s.tooLong.err; err != nil {
		return fmt.Errorf("%w: %s: it has grown too long, since it can't be rewritten: %w%s", cluster.ErrUnavailable, s.logPath(), err, logfile.Remedy(err))
	}
	return nil
}

// tooLongPause keeps a log that can't be rewritten, and is as long as it may be, from being read for each Commit that is refused.
const tooLongPause = time.Second

// compact rewrites the log under the lock.
func (s *store) compact() error {
	s.mu.RLock()
	entries, index := slices.Clone(s.table.Entries()), s.table.Index
	s.mu.RUnlock()
	err := s.rewrite(entries, index)
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(err, s.advanceLocked())
}

// create makes the log of a new store.
func (s *store) create() (err error) {
	if err := s.rewrite(nil, 1); err != nil {
		return unavailable(s.logPath(), err)
	}
	s.log, s.head, err = s.openLog()
	return err
}

const draftName = "log.new"

// rewrite puts a log with these entries in the place of the log.
func (s *store) rewrite(entries []*table.Entry[span], index uint64) (err error) {
	draft := s.path(draftName)
	if err := os.Remove(draft); err != nil && !errors.Is(err, fs.ErrNotExist) { // a crash has left it
		return err
	}
	f, err := os.OpenFile(draft, os.O_RDWR|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			os.Remove(draft)
		}
	}()
	head, err := s.fill(f, entries, index)
	if err != nil {
		return err
	}
	if err := os.Rename(draft, s.logPath()); err != nil {
		return err
	}
	if s.syncDir() == nil { // else the header does not say that the name is on the disk, and the next Commit sees to it first
		head.named = true
		_, _ = f.WriteAt(head.encode(), 0) // likewise
	}
	return nil
}

// fill writes the log and syncs it.
func (s *store) fill(f *os.File, entries []*table.Entry[span], index uint64) (header, error) {
	head := header{end: headerSize, index: index, base: index, boot: s.boot}
	w := bufio.NewWriterSize(f, readAhead)
	if _, err := w.Write(make([]byte, headerSize)); err != nil {
		return head, err
	}
	var b, read []byte
	for _, e := range entries {
		write, err := readEntry(s.log, e, &read)
		if errors.Is(err, errRecord) {
			write, err = salvage(e, read), nil
		}
		if err != nil { // the disk may still give it another time
			return head, err
		}
		write.CreateIndex, write.ModifyIndex = e.CreateIndex, e.ModifyIndex
		b = logfile.Record{Key: e.Key, TxID: index, Body: body(write)}.Append(b[:0])
		if _, err := w.Write(b); err != nil {
			return head, err
		}
		head.end += int64(len(b))
	}
	b = appendBatch(b[:0], index, nil)
	if _, err := w.Write(b); err != nil {
		return head, err
	}
	head.end += int64(len(b))
	if err := w.Flush(); err != nil {
		return head, err
	}
	if _, err := f.WriteAt(head.encode(), 0); err != nil {
		return head, err
	}
	return head, f.Sync()
}

// salvage returns a write of an entry whose record is damaged: with what is known in memory, and the bytes where the value was, marked.
func salvage(e *table.Entry[span], record []byte) table.Write {
	record = record[:e.Value.size]
	return table.Write{Key: e.Key, Lease: e.Lease, LeaseIndex: e.LeaseIndex, Value: record[len(record)-e.Size:], Size: e.Size, Damaged: true}
}

// syncDir makes the names in the directory outlive the machine.
func (s *store) syncDir() error {
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
