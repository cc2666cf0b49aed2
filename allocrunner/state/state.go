// Package state keeps in one file what of an allocation must outlive the process: how it stands, with what another runner has to know to
// resume it. It promises that what Put returned nil for is on the disk, that a reader never sees half of a change, that one process at a
// time owns the file, and that a file that is damaged or of another format is an error and never a crash, whatever bytes it has.
//
// The file is a log (see log.go), since an allocation has some tens of values of a few KB each: all that a database would give beyond a
// log is an index. A write is one append and one sync; a file that has grown is rewritten beside and put in place.
package state

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
)

// FileName is the state's name in the allocation directory.
const FileName = "state.db"

// The closed set of errors of opening and reading. Each comes with the file's name.
var (
	ErrInUse    = interfaces.ErrStateInUse
	ErrNotFound = interfaces.ErrNoState
	ErrFile     = interfaces.ErrStateFile
	// ErrDamaged: the state has been changed by something else than a taskapi, or is none.
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
	live     map[string]span
	job      *api.Job // the latest that was put, which is encoded when it is another one
	dirty    bool     // a write has failed: what the file shows may not be on the disk
	unsynced bool     // the file's name may not be on the disk yet
	rewrite  int64    // the file is rewritten when it is as long as this
}

// Open takes ownership of the state at path, and makes it, with mode 0600, when there is none. version is this taskapi's, for those who
// find the file. Errors: ErrInUse, ErrDamaged, ErrNewer, ErrOlder, ErrFile.
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
	c, err := load(db.file, db.path)
	switch {
	case errors.Is(err, ErrNotFound): // it is empty: a crash has left it, or it is new
		return db.replace(nil)
	case err == nil:
		err = c.check(db.path)
	}
	if err != nil {
		return err
	}
	db.head, db.txid, db.live, db.rewrite = c.end, max(c.txid, c.taken), c.live, threshold(c.live)
	db.dirty = db.syncTail(c.acknowledged) != nil
	return nil
}

// syncTail syncs a batch that was never acknowledged. Half a batch that a crash has left stays until it is written over: by its txid
// it belongs to nothing.
func (db *DB) syncTail(acknowledged int64) error {
	if acknowledged == db.head {
		return nil
	}
	if err := unix.Fdatasync(int(db.file.Fd())); err != nil {
		return err
	}
	return db.acknowledge()
}

// acknowledge notes in the header that all before head is on the disk. That is not synced itself: it only tells damage at the end from a
// batch that a crash has cut off.
func (db *DB) acknowledge() error {
	_, err := db.file.WriteAt(header(db.head, db.version), 0)
	return err
}

// The file is rewritten when it is so many times as long as what is valid in it, and at least so long: an allocation at rest never does.
const (
	rewriteFactor = 2
	rewriteFloor  = 128 << 10
)

func threshold(live map[string]span) int64 {
	var size int64
	for _, s := range live {
		size += s.size
	}
	return max(rewriteFloor, rewriteFactor*size)
}

// Load returns what is saved. Errors: ErrNotFound, ErrDamaged, ErrFile.
func (db *DB) Load() (*interfaces.Saved, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.file == nil {
		return nil, fileError(db.path, fs.ErrClosed)
	}
	c, err := load(db.file, db.path)
	if err == nil {
		err = c.check(db.path)
	}
	if err != nil {
		return nil, err
	}
	return c.saved(db.path)
}

// Put saves a change. When it returns nil, that is on the disk. After an error it may be or not: put it again. Errors: ErrFile with its
// cause, ErrDamaged; those of a change that can't be encoded.
func (db *DB) Put(c interfaces.Change) error {
	set := values{}
	if err := set.addChange(c); err != nil {
		return err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.file == nil {
		return fileError(db.path, fs.ErrClosed)
	}
	job := db.job
	if c.Alloc != nil && c.Alloc.Job != nil && c.Alloc.Job != job {
		job = c.Alloc.Job
		if err := set.add(jobKey, job); err != nil {
			return err
		}
	}
	if err := db.append(set); err != nil {
		return err
	}
	db.job = job
	return nil
}

// append writes those of the values that differ from what the file has.
func (db *DB) append(set values) error {
	info, err := db.file.Stat()
	if err == nil && info.Size() < db.head {
		return damagedError(db.path, fmt.Sprintf("it has %d bytes, and had %d", info.Size(), db.head))
	}
	if err == nil && db.unsynced {
		err = syncDir(filepath.Dir(db.path))
		db.unsynced = err != nil
	}
	if err != nil {
		return fileError(db.path, err)
	}
	if !db.dirty {
		db.leaveOut(set)
	}
	if len(set) == 0 {
		return nil
	}
	db.txid++ // also when the write fails: what that leaves belongs to no other batch
	batch, live := set.encode(db.txid, db.head, db.version)
	db.dirty = true
	if _, err = db.file.WriteAt(batch, db.head); err == nil {
		err = unix.Fdatasync(int(db.file.Fd()))
	}
	if err != nil {
		return fileError(db.path, err)
	}
	db.head += int64(len(batch))
	maps.Copy(db.live, live)
	db.dirty = db.acknowledge() != nil // which says nothing of the batch
	if db.head > db.rewrite {
		db.compact()
	}
	return nil
}

// leaveOut removes the values that the file has.
func (db *DB) leaveOut(set values) {
	for key, body := range set {
		if s, ok := db.live[key]; ok && s.body() == len(body) {
			if f, err := readRecord(db.file, s); err == nil && string(f.Body) == string(body) {
				delete(set, key)
			}
		}
	}
}

// compact rewrites the file without what is no longer valid. When it can't be, the file is as good as before, and it is tried again when
// the file is twice as long.
func (db *DB) compact() {
	set := values{}
	for key, s := range db.live {
		f, err := readRecord(db.file, s)
		if err != nil {
			db.rewrite *= 2
			return
		}
		set[key] = f.Body
	}
	if db.replace(set) != nil {
		db.rewrite *= 2
	}
}

// replace puts a new file with these values in the place of this one. This process owns the state throughout. After an error the file is as it
// was.
func (db *DB) replace(set values) error {
	draft := db.path + newSuffix
	file, head, live, err := writeDraft(draft, db.version, db.txid+1, set)
	if err != nil {
		return fileError(db.path, err)
	}
	if err := os.Rename(draft, db.path); err != nil {
		return errors.Join(fileError(db.path, err), file.Close(), os.Remove(draft))
	}
	old := db.file
	db.file, db.head, db.live, db.txid, db.dirty, db.rewrite = file, head, live, db.txid+1, false, threshold(live)
	db.unsynced = syncDir(filepath.Dir(db.path)) != nil // the next Put returns when it is
	return old.Close()
}

// TryRecreate returns the error that Recreate would return now.
func (db *DB) TryRecreate() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.file == nil {
		return fileError(db.path, fs.ErrClosed)
	}
	draft := db.path + newSuffix
	file, _, _, err := writeDraft(draft, db.version, 1, values{jobKey: make([]byte, 64<<10)}) // twice a large job
	if err != nil {
		return fileError(db.path, err)
	}
	return errors.Join(file.Close(), os.Remove(draft))
}

// Recreate forgets all that is saved and saves the change. This process owns the state throughout. When it fails, the state is as it was.
func (db *DB) Recreate(c interfaces.Change) error {
	set := values{}
	err := set.addChange(c)
	if err == nil && c.Alloc != nil && c.Alloc.Job != nil {
		err = set.add(jobKey, c.Alloc.Job)
	}
	if err != nil {
		return err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.file == nil {
		return fileError(db.path, fs.ErrClosed)
	}
	db.job = nil
	return db.replace(set)
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

// Read returns what is saved in a file. Errors: ErrInUse while a process owns it, ErrNotFound, ErrDamaged, ErrNewer,
// ErrOlder, ErrFile.
func Read(path string) (*interfaces.Saved, error) {
	saved, release, err := hold(path, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	return saved, release()
}

// Hold returns what is saved in a file that can't be written, as on a disk that is mounted read-only, and owns it until release. Its errors
// are those of Read.
func Hold(path string) (saved *interfaces.Saved, release func() error, err error) {
	return hold(path, unix.LOCK_EX)
}

func hold(path string, how int) (*interfaces.Saved, func() error, error) {
	file, err := lock(path, os.O_RDONLY, how)
	if err != nil {
		return nil, nil, err
	}
	c, err := load(file, path)
	if err == nil {
		err = c.check(path)
	}
	var saved *interfaces.Saved
	if err == nil {
		saved, err = c.saved(path)
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return saved, file.Close, nil
}

// saved puts the allocation together.
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

// newSuffix is of the name that a file has until it is complete.
const newSuffix = ".new"

// writeDraft writes a new file, locked and synced.
func writeDraft(draft, version string, txid uint64, set values) (_ *os.File, head int64, live map[string]span, err error) {
	if err := os.Remove(draft); err != nil && !errors.Is(err, fs.ErrNotExist) { // a crash has left it
		return nil, 0, nil, err
	}
	file, err := os.OpenFile(draft, os.O_RDWR|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, 0, nil, err
	}
	defer func() {
		if err != nil {
			file.Close()
			os.Remove(draft)
		}
	}()
	batch, live := set.encode(txid, headerSize, version)
	if err := takeLock(file, unix.LOCK_EX, 0); err != nil {
		return nil, 0, nil, err
	}
	head = headerSize + int64(len(batch))
	if _, err := file.Write(append(header(head, version), batch...)); err != nil {
		return nil, 0, nil, err
	}
	return file, head, live, file.Sync()
}

// syncDir makes the names in a directory outlive the machine.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
