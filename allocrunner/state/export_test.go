package state

import (
	"strings"

	bolt "go.etcd.io/bbolt"
)

// IDs are the allocations that the file has something of, in order. Errors: ErrDamaged, ErrFile.
func (db *DB) IDs() ([]string, error) {
	var ids []string
	err := db.view(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, _ *bolt.Bucket) error {
			if id, ok := strings.CutPrefix(string(name), allocPrefix); ok {
				ids = append(ids, id)
			}
			return nil
		})
	})
	return ids, err
}

// Retry writes what could not be written before. It returns nil when there is nothing of the kind.
func (db *DB) Retry() error {
	if !db.Pending() {
		return nil
	}
	return db.write(nil, "", nil)
}

// Pending reports whether the last write has failed and what it was to write is in memory alone.
func (db *DB) Pending() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.failing
}

// Hold keeps everybody else from the file until the function that it gives is called.
func (db *DB) Hold() (release func()) {
	db.turn <- struct{}{}
	return func() { <-db.turn }
}

// Waiting is a value that is to be written once no write is under way, empty for none.
func (db *DB) Waiting(id, key string) string {
	defer db.Hold()()
	db.mu.Lock()
	defer db.mu.Unlock()
	return string(db.waiting[slot{id, key}])
}

// Found is a frame in a file.
type Found struct {
	At, Size int
	ID, Key  string
	TxID     uint64
}

// Frames are all that a file has, older versions among them.
func Frames(data []byte) []Found {
	var all []Found
	for at := range data {
		if f, size, ok := decodeFrame(data[at:]); ok {
			all = append(all, Found{at, size, f.slot.id, f.slot.key, f.txid})
		}
	}
	return all
}

// Snapshot is how Inspect copies a file.
func Snapshot(file statReader) (data []byte, problems []error, err error) { return snapshot(file) }
