// Package state keeps what must outlive the process: allocations as they last stood, with what another runner has to know to go on with
// them, in one bbolt file. It promises that what Put returned nil for is on the disk, that what it returned an error for is written as
// soon as that works again, that a reader never sees half of a change, and that a file that is damaged or of another format is an error
// and never a crash, and is not guessed at unless Inspect or Repair is asked to. It knows nothing of how an allocation runs.
package state

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
)

// FileName is the state's name in the allocation directory.
const FileName = "state.db"

// The closed set of errors of opening and reading. Each comes with the file's name and what can be done.
var (
	// ErrInUse: another process has the file open, for writing if one only wants to read.
	ErrInUse = errors.New("state is in use by another process")
	// ErrNotFound: there is no file, or nothing of the allocation in it.
	ErrNotFound = errors.New("no state")
	// ErrDamaged: the file has been changed by something else than a taskapi, or is no state file.
	ErrDamaged = errors.New("state is damaged")
	// ErrNewer: the file has a format that only a newer taskapi reads.
	ErrNewer = errors.New("state is of a newer taskapi")
	// ErrOlder: the file has a format that is no longer read.
	ErrOlder = errors.New("state is of an older taskapi")
	// ErrFile: the file system refuses. The cause is wrapped, such as fs.ErrPermission or syscall.ENOSPC.
	ErrFile = errors.New("state can't be read or written")
)

var _ interfaces.State = (*DB)(nil)

// DB is an open state file. Its methods are safe for concurrent use.
type DB struct {
	path    string
	version string

	// turn holds one while somebody works with the file, which is all that comes next.
	turn   chan struct{}
	file   *os.File // has the lock; bbolt works with copies of its descriptor
	copied *os.File // the one that handle works with
	handle *bolt.DB // nil when it has to be opened anew
	unsure bool     // a write has failed at an unknown point: what the file shows may not be on the disk

	mu      sync.Mutex          // guards the fields below
	waiting values              // values that are to be written
	batch   *batch              // of those who wait for that, nil for nobody
	jobs    map[string]*api.Job // the latest that was put, by the allocation's ID
	stats   Stats
	failing bool // the last write has failed, and waiting has what it was to write
	closed  bool
}

// Stats counts what a DB has done since it was opened.
type Stats struct {
	Puts   uint64 // calls of Put
	Writes uint64 // transactions that were committed, each of which reaches the disk twice: its pages, then what makes them valid
	Failed uint64 // transactions that could not be
}

// Open opens the state at path for writing, and makes it, with mode 0600, when there is none. version is this taskapi's, for those who
// find the file. Errors: ErrInUse, ErrDamaged, ErrNewer, ErrOlder, ErrFile.
func Open(path, version string) (*DB, error) {
	file, err := lockForWriting(path, version)
	if err != nil {
		return nil, err
	}
	db := newDB(path, version, file)
	if err := db.open(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return db, nil
}

func newDB(path, by string, file *os.File) *DB {
	return &DB{
		path: path, version: by, file: file, turn: make(chan struct{}, 1),
		waiting: values{}, jobs: map[string]*api.Job{},
	}
}

// Read gives the allocation in a file that has one. Errors: ErrInUse while a process has it open for writing, ErrNotFound, ErrDamaged,
// ErrNewer, ErrOlder, ErrFile.
func Read(path string) (*interfaces.Saved, error) {
	c, err := read(path)
	if err != nil {
		return nil, err
	}
	ids := slices.Sorted(maps.Keys(c.allocs))
	if len(ids) > 1 {
		return nil, fmt.Errorf("%s: %w: it has %d allocations, and which one is not said: %s", path, ErrNotFound, len(ids), strings.Join(ids, ", "))
	}
	return c.saved(path, strings.Join(ids, ""))
}

// ReadAlloc gives one of the allocations in a file. Its errors are those of Read.
func ReadAlloc(path, id string) (*interfaces.Saved, error) {
	c, err := read(path)
	if err != nil {
		return nil, err
	}
	return c.saved(path, id)
}

// Hold gives one of the allocations in a file that can't be written, as on a disk that is mounted for reading alone, and keeps others from
// having it until release. Its errors are those of Read.
func Hold(path, id string) (saved *interfaces.Saved, release func() error, err error) {
	file, c, _, err := lockAndLoad(path, os.O_RDONLY, unix.LOCK_EX)
	if err != nil {
		return nil, nil, err
	}
	if err = c.check(path); err == nil {
		saved, err = c.saved(path, id)
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return saved, file.Close, nil
}

// read reads a file that nobody writes.
func read(path string) (*contents, error) {
	file, c, _, err := lockAndLoad(path, os.O_RDONLY, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return c, c.check(path)
}

// lockAndLoad opens a file that must be there, locks it, and reads what it has, problems included. The lock lasts until the file is closed.
func lockAndLoad(path string, flags, how int) (file *os.File, c *contents, data []byte, err error) {
	file, err = lock(path, flags, how)
	if err != nil {
		return nil, nil, nil, err
	}
	c, data, err = load(file, path)
	if err == nil && len(data) == 0 {
		err = fmt.Errorf("%s: %w", path, ErrNotFound)
	}
	if err != nil {
		file.Close()
		return nil, nil, nil, err
	}
	return file, c, data, nil
}

func (c *contents) saved(path, id string) (*interfaces.Saved, error) {
	return saved(path, id, c.allocs[id])
}

// saved is the allocation of which these values are all.
func saved(path, id string, set records) (*interfaces.Saved, error) {
	found, problems := compose(set)
	switch {
	case len(problems) > 0:
		return nil, damagedError(path, errors.Join(problems...))
	case found.Alloc == nil:
		return nil, fmt.Errorf("%s: %w: allocation %q has not been put", path, ErrNotFound, id)
	}
	return found, nil
}

// Saved is the allocation as it is in the file. Errors: ErrNotFound, ErrDamaged, ErrFile.
func (db *DB) Saved(id string) (*interfaces.Saved, error) {
	var set records
	var problems []error
	err := db.view(func(tx *bolt.Tx) error {
		set, problems = readValues(tx, id)
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case len(problems) > 0:
		return nil, damagedError(db.path, errors.Join(problems...))
	}
	return saved(db.path, id, set)
}

// Put implements interfaces.State. When it returns nil, the change is on the disk. Calls that come while another one writes are written
// together, those for one allocation in their order.
//
// When it returns an error, the change is kept in memory, later ones over it, and is written with the next call that succeeds, or by
// Close; but for a change that can't be encoded or has no ID. Errors: ErrFile with its cause, ErrDamaged, fs.ErrClosed.
func (db *DB) Put(c interfaces.Change) error {
	set := values{}
	if err := set.addChange(c); err != nil {
		return err
	}
	var job *api.Job
	if c.Alloc != nil {
		job = c.Alloc.Job
	}
	db.mu.Lock()
	db.stats.Puts++
	known := db.jobs[c.ID] == job
	db.mu.Unlock()
	if job != nil && !known { // a job is by far the largest value: it is encoded when it is another one
		if err := set.add(c.ID, jobKey, job); err != nil {
			return err
		}
	}
	return db.write(set, c.ID, job)
}

// Stats are the counts so far.
func (db *DB) Stats() Stats {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.stats
}

// TryAnew finds out whether there is room for a new file. Errors: those of Anew.
func (db *DB) TryAnew() error {
	db.turn <- struct{}{} // the draft is one file, of Anew's, too
	defer func() { <-db.turn }()
	db.mu.Lock()
	closed := db.closed
	db.mu.Unlock()
	if closed {
		return fileError(db.path, fs.ErrClosed)
	}
	draft := db.path + newSuffix
	if err := guarded(func() error { return writeDraft(draft, db.version, nil) }); err != nil {
		os.Remove(draft)
		return fileError(db.path, err)
	}
	return os.Remove(draft)
}

// Anew puts a new file in the place of this one, opens it and closes this one: nothing but the change is known then, of any allocation.
// When it fails the file is as it was, unless the error is ErrInUse: somebody was faster to open the new one.
func (db *DB) Anew(c interfaces.Change) (*DB, error) {
	set := values{}
	err := set.addChange(c)
	if err == nil && c.Alloc != nil && c.Alloc.Job != nil {
		err = set.add(c.ID, jobKey, c.Alloc.Job)
	}
	if err != nil {
		return nil, err
	}
	db.turn <- struct{}{}
	err = replace(db.path, db.version, set)
	<-db.turn
	if err != nil {
		return nil, fileError(db.path, err)
	}
	next, err := Open(db.path, db.version)
	if err != nil {
		return nil, err
	}
	return next, db.Close()
}

// Close waits for those who write, tries once more to write what could not be written, and closes the file. It is safe to call twice.
func (db *DB) Close() error {
	db.mu.Lock()
	was := db.closed
	db.closed = true
	db.mu.Unlock()
	if was {
		return nil
	}
	db.turn <- struct{}{}
	defer func() { <-db.turn }()
	err := db.last()
	if db.handle != nil {
		err = errors.Join(err, guarded(db.handle.Close)) // with copied
		db.handle = nil
	}
	return errors.Join(err, db.file.Close())
}
