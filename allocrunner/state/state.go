// Package state saves an allocation in one file, so that another runner can resume it after a crash. It promises that a
// change is on the disk when Put returns nil, that a reader never sees half of a change, that one process at a time
// owns the file, and that a file that is damaged or of another format is an error and never a crash, whatever bytes it
// has.
//
// The file is a log (see log.go). An allocation has some tens of values of a few KB each, for which a database would
// add no more than an index. A write is one append and one sync. A file that has grown is rewritten beside and put in
// place.
package state

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"sync"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/logfile"
)

// FileName is the state's name in the allocation directory.
const FileName = "state.db"

// The closed set of errors of opening and reading. Each comes with the file's name.
var (
	ErrInUse    = interfaces.ErrStateInUse
	ErrNotFound = interfaces.ErrNoState
	ErrFile     = interfaces.ErrStateFile
	// ErrDamaged: the file was damaged, or is no state.
	ErrDamaged = errors.New("state is damaged")
	// ErrNewer: the state has a format that only a newer taskapi reads.
	ErrNewer = errors.New("written by a newer taskapi")
	// ErrOlder: the state has a format that only an older taskapi reads.
	ErrOlder = errors.New("written by an older taskapi: stop the allocation with that binary first")
)

// Store keeps each allocation's state in a file of its own.
type Store struct {
	Path    func(id string) string // of the file
	Version string                 // of this taskapi
}

var (
	_ interfaces.Store      = Store{}
	_ interfaces.OwnedState = (*DB)(nil)
)

// Acquire opens the allocation's file, as Open does.
func (s Store) Acquire(id string) (interfaces.OwnedState, error) {
	db, err := Open(s.Path(id), s.Version)
	if err != nil {
		return nil, err
	}
	return db, nil
}

// DB is an allocation's state file, which this process owns. Its methods are safe for concurrent use.
type DB struct {
	path    string
	version string

	mu       sync.Mutex // guards the fields below; held over a write
	file     *os.File   // has the lock; nil after Close
	head     int64      // where the next batch goes: all before it is on the disk
	txid     uint64     // of the last batch that was begun
	live     map[string]location
	job      *api.Job // the latest that was put: the same pointer is not encoded again
	dirty    bool     // a write has failed: what the file shows may not be on the disk
	unsynced bool     // the file's name may not be on the disk yet
	fresh    bool     // nothing was put yet, and nothing of the file may be on the disk
	rewrite  logfile.Rewriting
}

// Open takes ownership of the state at path, and makes it, with mode 0600, when there is none. version is that of this
// taskapi, and is noted in the file. Errors: ErrInUse, ErrDamaged, ErrNewer, ErrOlder, ErrFile.
func Open(path, version string) (*DB, error) {
	file, err := lock(path, os.O_RDWR|os.O_CREATE, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	db := &DB{path: path, version: version, file: file}
	if err := db.open(); err != nil {
		return nil, errors.Join(err, db.file.Close())
	}
	return db, nil
}

func (db *DB) open() error {
	c, err := loadWhole(db.file, db.path)
	switch {
	case errors.Is(err, ErrNotFound): // it is empty: it is new, or a crash has left it so
		return db.begin()
	case err != nil:
		return err
	}
	db.head, db.txid, db.live = c.end, c.txid, c.live
	if c.acknowledged != c.end || c.size != c.end { // a crash has left something that is not acknowledged
		db.dirty = logfile.Settle(db.file, db.head, header(db.head, db.version)) != nil
	}
	return nil
}

// begin writes an empty file's header, which tells it from one of an allocation that has begun, whose state was
// removed. Nothing is synced: the first Put replaces the file.
func (db *DB) begin() error {
	batch, live := values(nil).encode(1, logfile.HeaderSize, db.version)
	db.head, db.txid, db.live, db.fresh = logfile.HeaderSize+int64(len(batch)), 1, live, true
	if _, err := db.file.WriteAt(append(header(db.head, db.version), batch...), 0); err != nil {
		_ = os.Remove(db.path) // otherwise the empty file stays, which counts as none
		return fileError(db.path, errors.Join(err, db.file.Truncate(0)))
	}
	return nil
}

// rewriteFloor keeps an allocation at rest from ever rewriting its file.
const rewriteFloor = 128 << 10

// Load returns the saved state. Errors: ErrNotFound, ErrDamaged, ErrFile.
func (db *DB) Load() (*interfaces.Saved, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.file == nil {
		return nil, fileError(db.path, fs.ErrClosed)
	}
	c, err := loadWhole(db.file, db.path)
	if err != nil {
		return nil, err
	}
	return c.saved(db.path)
}

// Put saves a change. When Put returns nil, the change is on the disk. After an error the change may be there or not:
// put it again. Errors: ErrFile with its cause, ErrDamaged; those of a change that can't be encoded.
func (db *DB) Put(c interfaces.Saved) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.file == nil {
		return fileError(db.path, fs.ErrClosed)
	}
	set, job, err := encode(c, db.job)
	if err == nil {
		err = db.append(set)
	}
	if err == nil {
		db.job = job
	}
	return err
}

// append writes the values that differ from those in the file.
func (db *DB) append(set values) error {
	if db.fresh {
		if err := db.replace(set); err != nil {
			return err
		}
		set = nil
	}
	if db.unsynced {
		if err := logfile.SyncName(db.path); err != nil {
			return fileError(db.path, err)
		}
		db.unsynced = false
	}
	if !db.dirty {
		db.leaveOut(set)
	}
	if len(set) == 0 {
		return nil
	}
	db.txid++ // also when the write fails: what it leaves then belongs to no other batch
	batch, live := set.encode(db.txid, db.head, db.version)
	end := db.head + int64(len(batch))
	err := logfile.Append(db.file, db.head, batch, header(end, db.version), header(db.head, db.version))
	if err != nil {
		db.dirty = db.dirty || errors.Is(err, logfile.ErrUncertain)
		if errors.Is(err, logfile.ErrShort) {
			return damagedError(db.path, err)
		}
		return fileError(db.path, err)
	}
	db.head, db.dirty = end, false
	maps.Copy(db.live, live)
	var valid int64
	for _, p := range db.live {
		valid += int64(p.Size)
	}
	db.rewrite.If(db.head, valid, rewriteFloor, db.compact)
	return nil
}

// leaveOut removes the values that the file has already.
func (db *DB) leaveOut(set values) {
	var buffer []byte
	for key, body := range set {
		if p, ok := db.live[key]; ok && p.body == len(body) {
			if r, err := p.Read(db.file, &buffer); err == nil && bytes.Equal(r.Body, body) {
				delete(set, key)
			}
		}
	}
}

// compact rewrites the file with the latest values alone.
func (db *DB) compact() error {
	set := values{}
	for key, p := range db.live {
		r, err := p.Read(db.file, new([]byte))
		if err != nil {
			return err
		}
		set[key] = r.Body
	}
	return db.replace(set)
}

// replace puts a new file with these values in the place of this one. This process owns the state throughout. After an
// error the file is as it was.
func (db *DB) replace(set values) error {
	batch, live := set.encode(db.txid+1, logfile.HeaderSize, db.version)
	file, err := logfile.Replace(db.path, db.draft(batch))
	if err != nil {
		return fileError(db.path, err)
	}
	old := db.file
	db.file, db.head, db.live, db.txid = file, logfile.HeaderSize+int64(len(batch)), live, db.txid+1
	db.dirty, db.fresh = false, false
	db.unsynced = logfile.SyncName(db.path) != nil // then the next Put does it first
	return old.Close()
}

// draft writes a new file of one batch, locked.
func (db *DB) draft(batch []byte) func(*os.File) error {
	return func(file *os.File) error {
		if err := takeLock(file, unix.LOCK_EX, 0); err != nil {
			return err
		}
		_, err := file.Write(append(header(logfile.HeaderSize+int64(len(batch)), db.version), batch...))
		return err
	}
}

// TryRecreate returns the error that Recreate would return now.
func (db *DB) TryRecreate() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.file == nil {
		return fileError(db.path, fs.ErrClosed)
	}
	file, err := logfile.Draft(db.path, db.draft(make([]byte, 64<<10))) // twice a large job
	if err != nil {
		return fileError(db.path, err)
	}
	return errors.Join(file.Close(), os.Remove(file.Name()))
}

// Recreate replaces the whole saved state by the change. This process owns the state throughout. If Recreate fails, the
// state is unchanged.
func (db *DB) Recreate(c interfaces.Saved) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.file == nil {
		return fileError(db.path, fs.ErrClosed)
	}
	set, job, err := encode(c, nil)
	if err == nil {
		err = db.replace(set)
	}
	if err == nil {
		db.job = job
	}
	return err
}

// Close lets others own the state. It is safe to call twice.
func (db *DB) Close() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.file == nil {
		return nil
	}
	file := db.file
	db.file = nil
	return file.Close()
}

// Read returns the saved state in a file. Errors: ErrInUse while a process owns it, ErrNotFound, ErrDamaged, ErrNewer,
// ErrOlder, ErrFile.
func Read(path string) (*interfaces.Saved, error) {
	saved, release, err := hold(path, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	return saved, release()
}

// Hold returns the saved state in a file that can't be written, as on a disk that is mounted read-only, and owns the
// state until release. Its errors are those of Read.
func Hold(path string) (saved *interfaces.Saved, release func() error, err error) {
	return hold(path, unix.LOCK_EX)
}

func hold(path string, how int) (*interfaces.Saved, func() error, error) {
	file, err := lock(path, os.O_RDONLY, how)
	if err != nil {
		return nil, nil, err
	}
	c, err := loadWhole(file, path)
	var saved *interfaces.Saved
	if err == nil {
		saved, err = c.saved(path)
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return saved, file.Close, nil
}

// saved composes the allocation from its values.
func (c *contents) saved(path string) (*interfaces.Saved, error) {
	saved, problems := compose(c.values)
	switch {
	case len(problems) > 0:
		return nil, damagedError(path, errors.Join(problems...))
	case saved.Alloc == nil:
		return nil, fmt.Errorf("%s: %w: no allocation has been put", path, ErrNotFound)
	}
	return saved, nil
}
