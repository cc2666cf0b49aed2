package disk

import (
	"context"
	"errors"
	"fmt"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/internal/table"
	"taskapi/internal/logfile"
)

// Commit applies a transaction. It waits for the lock until ctx ends, and 10 seconds at most.
func (s *Store) Commit(ctx context.Context, txn cluster.Txn) (uint64, error) {
	if err := txn.Check(); err != nil {
		return 0, err
	}
	if err := s.open(ctx); err != nil {
		return 0, err
	}
	return s.write(ctx, lockTimeout, func() ([]table.Write, error) {
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

// write takes the lock, makes the writes that plan returns, and returns the store's index. It waits for the lock no
// longer than most. It holds mu only while it uses the table, so that readers don't wait for the disk.
func (s *Store) write(ctx context.Context, most time.Duration, plan func() ([]table.Write, error)) (uint64, error) {
	release, err := s.acquire(ctx, most)
	if err != nil {
		return 0, err
	}
	defer release()
	s.sign()
	s.mu.Lock()
	err = s.advanceLocked()
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
	s.mu.RLock()
	size, valid := s.head.end, int64(s.table.Bytes()+s.table.Len()*recordCost)
	s.mu.RUnlock()
	s.rewriting.If(size, valid, rewriteFloor, s.compact)
	return index + 1, nil
}

// append adds a batch to the log. Nobody reads it before the header notes it. After an error it is not in the log,
// unless the error is ErrUncertain.
func (s *Store) append(batch []byte) error {
	next := s.head
	next.end += int64(len(batch))
	next.index++
	if !next.named {
		if err := logfile.SyncName(s.logPath()); err != nil {
			return unavailable(s.dir, err)
		}
		next.named = true
	}
	err := logfile.Append(s.log, s.head.end, batch, next.encode(), s.head.encode())
	switch {
	case err == nil:
		return nil
	case errors.Is(err, logfile.ErrShort):
		return s.damaged(err)
	case errors.Is(err, logfile.ErrUncertain):
		return fmt.Errorf("%w: %w", cluster.ErrUncertain, unavailable(s.logPath(), err))
	}
	return unavailable(s.logPath(), err)
}
