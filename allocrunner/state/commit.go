package state

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"

	"github.com/hashicorp/nomad/api"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// batch is those who wait for the same transaction.
type batch struct {
	done chan struct{} // closed when it has been written, or could not be
	err  error         // valid then
}

// write has the values written, job among them or known, with those of all who call while somebody else writes, and waits for it. Nobody waits for others to come:
// who finds the file free writes at once. bbolt's own Batch would wait up to 10 ms, and give back what has failed.
func (db *DB) write(set values, id string, job *api.Job) error {
	b, err := db.enqueue(set, id, job)
	if err != nil {
		return err
	}
	select {
	case <-b.done:
	case db.turn <- struct{}{}:
		db.flush(b)
		<-db.turn
	}
	return b.err
}

func (db *DB) enqueue(set values, id string, job *api.Job) (*batch, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.closed {
		return nil, fileError(db.path, fs.ErrClosed)
	}
	if job != nil {
		db.jobs[id] = job
	}
	maps.Copy(db.waiting, set)
	return db.batchLocked(), nil
}

func (db *DB) batchLocked() *batch {
	if db.batch == nil {
		db.batch = &batch{done: make(chan struct{})}
	}
	return db.batch
}

// flush writes all that waits, unless that has been done for b. The caller has the turn.
func (db *DB) flush(b *batch) {
	select {
	case <-b.done:
		return
	default:
	}
	db.mu.Lock()
	set := db.waiting
	db.waiting, db.batch = values{}, nil
	db.mu.Unlock()
	wrote, err := db.commit(set)
	db.mu.Lock()
	db.failing = err != nil
	switch {
	case err != nil:
		db.stats.Failed++
		maps.Copy(set, db.waiting) // what has come since goes before
		db.waiting = set
	case wrote:
		db.stats.Writes++
	}
	db.mu.Unlock()
	b.err = err
	close(b.done)
}

// last writes what still waits when the file is closed. The caller has the turn.
func (db *DB) last() error {
	db.mu.Lock()
	if len(db.waiting) == 0 && db.batch == nil {
		db.mu.Unlock()
		return nil
	}
	b := db.batchLocked()
	db.mu.Unlock()
	db.flush(b)
	return b.err
}

// commit writes the values in one transaction, and reports whether there was anything to write. A handle that is of no use any more is
// replaced once.
func (db *DB) commit(set values) (wrote bool, err error) {
	for range 2 {
		if db.handle == nil {
			if err := db.open(); err != nil {
				return false, keptError(err)
			}
		}
		wrote, err = db.transact(set)
		db.unsure = err != nil
		if !unusable(err) {
			break
		}
		db.abandon()
	}
	if err != nil {
		return false, keptError(fileError(db.path, err))
	}
	return wrote, nil
}

func keptError(err error) error {
	return fmt.Errorf("%w; what has changed is kept in memory and written when that works again", err)
}

// transact writes the values unless the file has them. After a failure it writes in any case: the file may show what never reached the disk.
func (db *DB) transact(set values) (wrote bool, err error) {
	err = guarded(func() error {
		tx, err := db.handle.Begin(true)
		if err != nil {
			return err
		}
		other, err := writeMeta(tx, db.version)
		if err != nil {
			return errors.Join(err, tx.Rollback())
		}
		changed, err := writeValues(tx, set)
		if err != nil || !other && !changed && !db.unsure {
			return errors.Join(err, tx.Rollback())
		}
		wrote = true
		return tx.Commit()
	})
	return wrote, err
}

// view reads. What f takes with it has to be a copy: what bbolt gives is the mapped file.
func (db *DB) view(f func(*bolt.Tx) error) error {
	db.turn <- struct{}{}
	defer func() { <-db.turn }()
	db.mu.Lock()
	closed := db.closed
	db.mu.Unlock()
	if closed {
		return fileError(db.path, fs.ErrClosed)
	}
	if db.handle == nil {
		if err := db.open(); err != nil {
			return err
		}
	}
	err := guarded(func() error { return db.handle.View(f) })
	if unusable(err) {
		db.abandon()
	}
	if errors.Is(err, errPanic) {
		return damagedError(db.path, err)
	}
	if err != nil {
		return fileError(db.path, err)
	}
	return nil
}

// open checks the file and opens it with bbolt, which gets a copy of the descriptor: the lock belongs to both, so that a handle can be
// given up without letting anybody else in. The caller has the turn.
func (db *DB) open() error {
	if err := flock(db.file, unix.LOCK_EX, 0); err != nil { // bbolt lets go of it when it can't open
		return fmt.Errorf("%s: %w", db.path, err)
	}
	c, _, err := load(db.file, db.path)
	if err == nil {
		err = c.check(db.path)
	}
	if err != nil {
		return err
	}
	fd, err := unix.FcntlInt(db.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fileError(db.path, err)
	}
	db.copied = os.NewFile(uintptr(fd), db.path)
	give := func(string, int, fs.FileMode) (*os.File, error) { return db.copied, nil }
	err = guarded(func() (err error) {
		db.handle, err = bolt.Open(db.path, 0o600, &bolt.Options{Timeout: lockTimeout, OpenFile: give})
		return err
	})
	if err != nil {
		db.abandon()
		return fileError(db.path, err)
	}
	return nil
}

// unusable reports whether an error leaves a handle on which every call fails, or waits for ever for a lock that a panic has left locked.
func unusable(err error) bool {
	return errors.Is(err, errPanic) || errors.Is(err, bolterrors.ErrInvalidMapping) || errors.Is(err, bolterrors.ErrDatabaseNotOpen)
}

// abandon gives up the handle without asking it. Its mapping, which only bbolt could undo, stays until the process ends.
func (db *DB) abandon() {
	db.copied.Close()
	db.handle, db.copied = nil, nil
}
