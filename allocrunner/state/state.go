// Package state keeps what must outlive the process: the allocation as it last stood, in one bbolt file. It promises that what
// Put returned for is on the disk, that a reader never sees half of it, and that a file of another format is refused, not
// guessed at. It knows nothing of how an allocation runs.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"taskapi/allocrunner/interfaces"
)

// FileName is the state's name in the allocation directory.
const FileName = "state.db"

// The closed set of errors.
var (
	// ErrInUse: another process has the state open for writing.
	ErrInUse = errors.New("state is in use by another process")
	// ErrNotFound: there is no state, or nothing has been put yet.
	ErrNotFound = errors.New("no state")
	// ErrDamaged: the file is not a state file, or one of a format that this version does not read.
	ErrDamaged = errors.New("state can't be read")
)

// lockTimeout bounds the wait for the file's lock; bbolt would wait for ever.
const lockTimeout = 500 * time.Millisecond

// format is the layout of the file. It is raised when an older version could not read what a newer one writes.
const format = "1"

var (
	metaBucket  = []byte("meta")
	allocBucket = []byte("allocation")
	formatKey   = []byte("format")
	savedKey    = []byte("saved")
)

var _ interfaces.State = (*DB)(nil)

// DB is an open state file. Its methods are safe for concurrent use.
type DB struct{ bolt *bolt.DB }

// Open opens the state at path for writing and makes it, with mode 0600, when it is missing. Errors: ErrInUse, ErrDamaged, and
// those of the file system.
func Open(path string) (*DB, error) {
	db, err := open(path, false)
	if err != nil {
		return nil, err
	}
	if err := db.bolt.Update(initialize); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare state %s: %w", path, err), db.Close())
	}
	return db, nil
}

// Read gives what the state at path holds. Errors: ErrInUse while a process writes it, ErrNotFound, ErrDamaged.
func Read(path string) (saved *interfaces.Saved, err error) {
	db, err := open(path, true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return db.Saved()
}

func open(path string, readOnly bool) (*DB, error) {
	if readOnly {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: %w", path, ErrNotFound)
		}
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockTimeout, ReadOnly: readOnly})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("%s: %w; is taskapi already running this allocation?", path, ErrInUse)
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrVersionMismatch), errors.Is(err, bolterrors.ErrChecksum):
		return nil, fmt.Errorf("%s: %w: %w; move the file away to start anew", path, ErrDamaged, err)
	case err != nil:
		return nil, fmt.Errorf("open state: %w", err)
	}
	return &DB{db}, nil
}

// initialize makes the buckets of a new file and refuses a file of another format.
func initialize(tx *bolt.Tx) error {
	meta, err := tx.CreateBucketIfNotExists(metaBucket)
	if err != nil {
		return err
	}
	switch got := meta.Get(formatKey); {
	case got == nil:
		if err := meta.Put(formatKey, []byte(format)); err != nil {
			return err
		}
	case string(got) != format:
		return fmt.Errorf("%w: format %q, this version reads %q", ErrDamaged, got, format)
	}
	_, err = tx.CreateBucketIfNotExists(allocBucket)
	return err
}

// Close closes the file. It is safe to call twice.
func (db *DB) Close() error { return db.bolt.Close() }

// Put implements interfaces.State: when it returns nil, what it was given is on the disk.
func (db *DB) Put(saved interfaces.Saved) error {
	data, err := json.Marshal(saved)
	if err != nil {
		return fmt.Errorf("encode allocation %s: %w", saved.Alloc.ID, err)
	}
	err = db.bolt.Update(func(tx *bolt.Tx) error { return tx.Bucket(allocBucket).Put(savedKey, data) })
	if err != nil {
		return fmt.Errorf("write allocation %s: %w", saved.Alloc.ID, err)
	}
	return nil
}

// Saved is what was put last. Errors: ErrNotFound, ErrDamaged.
func (db *DB) Saved() (*interfaces.Saved, error) {
	var saved interfaces.Saved
	err := db.bolt.View(func(tx *bolt.Tx) error {
		bucket := tx.Bucket(allocBucket)
		if bucket == nil {
			return ErrNotFound
		}
		data := bucket.Get(savedKey)
		if data == nil {
			return ErrNotFound
		}
		if err := json.Unmarshal(data, &saved); err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if saved.Alloc == nil {
			return fmt.Errorf("%w: no allocation in it", ErrDamaged)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read allocation: %w", err)
	}
	return &saved, nil
}
