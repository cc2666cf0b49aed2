package disk

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/internal/table"
)

func (s *store) commit(ctx context.Context, txn cluster.Txn) (uint64, error) {
	return s.write(ctx, func() ([]table.Write, error) {
		writes, conflict, err := s.table.Plan(txn, s.live())
		if conflict == "" {
			return writes, err
		}
		entry, err := s.getLocked(conflict)
		if err != nil {
			return nil, err
		}
		return nil, &cluster.ConflictError{Entry: entry}
	})
}

// write makes the writes that plan returns under the lock, and returns the store's index.
func (s *store) write(ctx context.Context, plan func() ([]table.Write, error)) (uint64, error) {
	release, err := s.acquire(ctx, lockTimeout)
	if err != nil {
		return 0, err
	}
	defer release()
	s.sign()
	return s.writeLocked(plan)
}

// writeLocked does so for who has the lock. It holds mu for what is in memory only: readers don't wait for the disk.
func (s *store) writeLocked(plan func() ([]table.Write, error)) (uint64, error) {
	s.mu.Lock()
	err := s.advanceLocked()
	var writes []table.Write
	if err == nil {
		writes, err = plan()
	}
	index := s.table.Index
	s.mu.Unlock()
	if err != nil || len(writes) == 0 {
		return index, err
	}
	batch := appendBatch(nil, index+1, writes)
	if err := s.makeRoom(len(batch)); err != nil {
		return 0, err
	}
	if err := s.append(batch); err != nil {
		return 0, err
	}
	s.mu.Lock()
	err = s.advanceLocked()
	s.mu.Unlock()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", cluster.ErrUncertain, err)
	}
	s.compactIfLong()
	return index + 1, nil
}

// append adds a batch to the log, and notes it in the header when it is synced: until then nobody reads it. After an error it is not there, unless
// that is ErrUncertain.
func (s *store) append(batch []byte) error {
	head := s.head
	next := head
	next.end += int64(len(batch))
	next.index++
	if !next.named {
		if err := s.syncDir(); err != nil {
			return unavailable(s.dir, err)
		}
		next.named = true
	}
	err := s.cutOff(head.end) // what a process has left that was killed
	if err == nil {
		_, err = s.log.WriteAt(batch, head.end)
	}
	if err == nil {
		err = unix.Fdatasync(int(s.log.Fd()))
	}
	if err == nil {
		_, err = s.log.WriteAt(next.encode(), 0)
	}
	if err == nil {
		return nil
	}
	err = unavailable(s.logPath(), err)
	if left := s.undo(head); left != nil {
		err = fmt.Errorf("%w: %w: and what was written of it can't be removed: %w", cluster.ErrUncertain, err, left)
	}
	return err
}

// cutOff removes what is behind the end of the log.
func (s *store) cutOff(end int64) error {
	info, err := s.log.Stat()
	if err != nil || info.Size() == end {
		return err
	}
	return s.log.Truncate(end)
}

// undo removes a batch that was not noted, for good: after a crash of the machine a whole one would count.
func (s *store) undo(head header) error {
	if err := s.log.Truncate(head.end); err != nil {
		return err
	}
	if _, err := s.log.WriteAt(head.encode(), 0); err != nil { // what is there may be half of another
		return err
	}
	return unix.Fdatasync(int(s.log.Fd()))
}
