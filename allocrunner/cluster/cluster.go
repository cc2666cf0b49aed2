// Package cluster is what allocations have in common, and what Nomad keeps on its servers: variables and their locks, service registrations,
// the metadata of nodes. It promises one Store below all of them, and knows neither HTTP nor tokens.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// The bounds of a transaction.
const (
	MaxKeyBytes   = 1 << 10 // of a lease's owner, too
	MaxValueBytes = 512 << 10
	MaxOperations = 128     // and as many conditions
	MaxTxnBytes   = 4 << 20 // of all its values
)

// The bounds of a Store.
const (
	MaxEntries = 100_000
	MaxBytes   = 64 << 20 // of keys, owners and values
)

var (
	// ErrInvalid: a key, a value or a transaction is beyond the bounds. Nothing has changed.
	ErrInvalid = errors.New("the request can't be kept")
	// ErrUnavailable: the store can't be read or written now, such as on a full disk. After a Commit it may or may not have been applied
	// only when the error is ErrUncertain, too.
	ErrUnavailable = errors.New("the store is not available")
	// ErrFull: the store has as many entries, or bytes, as it may. Nothing has changed, and what needs no more room than before still can.
	ErrFull = errors.New("the store is full")
	// ErrUncertain: nobody knows whether a Commit has been applied.
	ErrUncertain = errors.New("it is not known whether the change was made")
	// ErrLeaseEnded: nobody holds the lease that an operation names. Nothing has changed.
	ErrLeaseEnded = errors.New("the lease has ended")
)

// ConflictError is a Commit of which a condition did not hold. Nothing has changed.
type ConflictError struct {
	Entry Entry // as it is; its ModifyIndex is 0 when there is none
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s has changed: its index is %d", e.Entry.Key, e.Entry.ModifyIndex)
}

// IsConflict reports whether a Commit was not made because something else has changed since.
func IsConflict(err error) bool {
	_, conflict := errors.AsType[*ConflictError](err)
	return conflict
}

// Entry is a key with its value. A key is valid UTF-8 without control characters, and so is a lease's owner. Its slices are shared and never changed.
type Entry struct {
	Key         string
	Value       []byte
	CreateIndex uint64 // of the Commit that made the entry
	ModifyIndex uint64 // of the latest one that wrote it; 0 for no entry
	Lease       string // the owner that it ends with; empty for none
	Damaged     bool   // the value was damaged where it is kept, and is not returned; it can be written over, or deleted
}

// Store keeps entries, ordered by key, for any number of processes at once. Every Commit that changes something has an index of its own,
// above all earlier ones, also across processes and restarts; an empty store has index 1. A read sees every Commit that had returned, in any
// process, before the read began, and never waits for a writer. Methods may be called from several goroutines. Errors besides those named:
// ErrUnavailable, ctx's.
type Store interface {
	// Get returns the entry of a key, with ModifyIndex 0 when there is none, and the store's index at that moment.
	Get(ctx context.Context, key string) (Entry, uint64, error)

	// List returns entries by key, all of one moment.
	List(ctx context.Context, span Span) (Page, error)

	// Commit applies all operations of a transaction at once if all of its conditions hold, and returns the index of that. When it returns, a
	// crash or a power cut loses nothing of it. A transaction that changes nothing, such as the deletion of what is not there, returns the
	// store's index. Errors: *ConflictError, ErrInvalid, ErrLeaseEnded, ErrFull, ErrUncertain.
	Commit(ctx context.Context, txn Txn) (uint64, error)

	// Watch waits until a key with the prefix has been changed or deleted after an index, and returns what has been by then. A caller
	// that lists first goes on from the Page's index.
	Watch(ctx context.Context, prefix string, after uint64) (Changes, error)

	// Hold joins the holders of an owner's lease, or is its first. The lease lives while anyone holds it; the next Hold then begins another
	// one, which has none of the entries. Errors: ErrInvalid.
	Hold(ctx context.Context, owner string) (Lease, error)

	// Close ends what this process has of the store: watches return ErrUnavailable. Leases are their holders'.
	Close() error
}

// Span is which entries a List is about, and how much of their values is read: of others nothing is.
type Span struct {
	Prefix, After string
	Only          func(key string) bool // nil for all with the prefix that come after After; it must not use the store
	Limit         int                   // of the entries; 0 for all
	Head          int                   // how many bytes of a value are returned at most; 0 for all
}

// Cut returns as much of a value as is returned.
func (s Span) Cut(value []byte) []byte {
	if s.Head > 0 && len(value) > s.Head {
		return value[:s.Head:s.Head]
	}
	return value
}

// Page is what a List returns.
type Page struct {
	Entries []Entry
	More    bool   // the limit left some out
	Index   uint64 // the store's
}

// Txn is a transaction: Then is applied if every condition of If holds. Operations on one key are applied in their order.
type Txn struct {
	If   []Condition
	Then []Operation
}

// Condition holds while the entry of Key has the ModifyIndex, 0 for none.
type Condition struct {
	Key         string
	ModifyIndex uint64
}

// Operation writes or deletes an entry.
type Operation struct {
	Key    string
	Value  []byte
	Delete bool
	Lease  string // the owner that the entry ends with; empty for none
}

// Changes is what a Watch returns: the keys that have been changed or deleted, each once, in the order of their latest change. With Gap the
// store no longer knows which: the caller reads everything again.
type Changes struct {
	Keys  []string
	Gap   bool
	Index uint64 // to go on from
}

// Lease binds entries to an owner that may end without a word, such as an allocation. When nobody holds it any more, be it by Close or by the
// end of the last process that does, no read returns its entries, and they are deleted, which Watch reports within two seconds wherever the
// store is open.
type Lease interface {
	Owner() string

	// Files are what another process has to keep open to hold the lease without this one: a keeper does so while its agent is away. There
	// are none where the store gives an absent holder time instead.
	Files() []*os.File

	// Close ends this process's hold.
	Close() error
}
