// Package cluster declares the store that allocations share. It holds the data that Nomad keeps on its servers:
// variables and their locks, service registrations and the metadata of nodes. Packages below this one implement the
// store, or keep one kind of data in it. None of them knows HTTP or tokens.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// The bounds of a transaction.
const (
	MaxKeyBytes   = 1 << 10 // of a lease's owner, too
	MaxValueBytes = 512 << 10
	MaxOperations = 120     // and as many conditions: etcd takes 128 of both, some of which the store adds
	MaxTxnBytes   = 4 << 20 // of all its values
)

// The bounds of a Store of one machine. Of a Store of several machines, one process keeps no more than this.
const (
	MaxEntries = 100_000
	MaxBytes   = 64 << 20 // of keys, owners and values
)

var (
	// ErrInvalid: a key, a value or a transaction is beyond the bounds. Nothing has changed.
	ErrInvalid = errors.New("the request can't be kept")
	// ErrUnavailable: the store can't be read or written now, such as on a full disk. A Commit that returns it has
	// changed nothing, unless the error is ErrUncertain, too.
	ErrUnavailable = errors.New("the store is not available")
	// ErrKey is an ErrUnavailable: this machine can't read what others have written.
	ErrKey = fmt.Errorf("%w: none of its values opens with the key of this machine: cluster.key_file must have the "+
		"same content on all machines", ErrUnavailable)
	// ErrFull: the store has as many entries, or bytes, as it may. Nothing has changed. A change that needs no more
	// room than before still can be made.
	ErrFull = errors.New("the store is full")
	// ErrUncertain: nobody knows whether a Commit has been applied.
	ErrUncertain = errors.New("it is not known whether the change was made")
	// ErrLeaseEnded: nobody holds the lease that an operation names. Nothing has changed.
	ErrLeaseEnded = errors.New("the lease has ended")
)

// ConflictError: a condition of a Commit did not hold. Nothing has changed.
type ConflictError struct {
	Entry Entry // the one that is there; its ModifyIndex is 0 when there is none
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s has changed: its index is %d", e.Entry.Key, e.Entry.ModifyIndex)
}

// AwayError is an ErrUnavailable that may be over after a time.
type AwayError struct {
	Err   error
	After time.Duration
}

func (e *AwayError) Error() string   { return fmt.Sprintf("%v: %v", ErrUnavailable, e.Err) }
func (e *AwayError) Unwrap() []error { return []error{ErrUnavailable, e.Err} }

// IsConflict reports whether a Commit was not made because something else has changed since.
func IsConflict(err error) bool {
	_, conflict := errors.AsType[*ConflictError](err)
	return conflict
}

// Entry is a key with its value. A key is valid UTF-8 without control characters, and so is a lease's owner. Its slices
// are shared and must not be changed.
type Entry struct {
	Key         string
	Value       []byte
	CreateIndex uint64 // of the Commit that made the entry
	ModifyIndex uint64 // of the latest one that wrote it; 0 for no entry
	Lease       string // the owner of the lease that the entry ends with; empty for none
	Damaged     bool   // the value was damaged on the disk and is not returned; it can be written over, or deleted
}

// Store keeps entries, ordered by key, for any number of processes at once. Every Commit that changes something has an
// index of its own, above all earlier ones, also across processes and restarts; an empty store has index 1. A read sees
// every Commit that had returned, in any process, before the read began, and never waits for a writer. Methods may be
// called from several goroutines. Errors besides those named: ErrUnavailable, ctx's.
type Store interface {
	// Get returns the entry of a key, with ModifyIndex 0 when there is none, and the store's index at that moment.
	Get(ctx context.Context, key string) (Entry, uint64, error)

	// List returns entries by key, all of one moment.
	List(ctx context.Context, span Span) (Page, error)

	// Commit applies all operations of a transaction at once if all of its conditions hold, and returns the index of
	// that. When it returns, a crash or a power cut loses nothing of it. A transaction that changes nothing, such as
	// the deletion of a key that has no entry, returns the store's index. Errors: *ConflictError, ErrInvalid,
	// ErrLeaseEnded, ErrFull, ErrUncertain.
	Commit(ctx context.Context, txn Txn) (uint64, error)

	// Watch waits until a key with the prefix is changed or deleted after an index, and returns all such changes so
	// far. A caller that lists first goes on from the Page's index.
	Watch(ctx context.Context, prefix string, after uint64) (Changes, error)

	// Hold joins the holders of an owner's lease, or begins one. The lease lives while anybody holds it. A Hold after
	// its end begins another lease, which has none of the entries of the first. Errors: ErrInvalid.
	Hold(ctx context.Context, owner string) (Lease, error)

	// Close closes the store in this process: watches return ErrUnavailable. Leases stay until their holders close
	// them.
	Close() error
}

// Span selects entries for a List, and says how much of their values is read. Nothing is read of other entries.
type Span struct {
	Prefix, After string
	Only          func(key string) bool // nil for every key; it must not use the store
	Limit         int                   // of the entries; 0 for all
	Head          int                   // how many bytes of a value are returned at most; 0 for all

	// Local asks for the entries as this process knows them, without a question to other machines, also while these can't
	// be reached, if it has listed or watched them lately. Every Commit of this process is among them. A store of one
	// machine makes no difference.
	Local bool
}

// Fresher is a Store whose entries other machines change. A Store without this method is always fresh.
type Fresher interface {
	// FreshUntil returns the time until which every Commit to entries with a prefix that returned more than FreshTime
	// before that time is among this process's own entries. After that time, other machines may have changed entries that
	// a Local read does not show. It is the zero time when nobody has listed or watched them lately, and never waits. A
	// first call may find them old; a List that is not Local makes them fresh.
	FreshUntil(prefix string) time.Time
}

// Sealer hides values from those who read a store. What is sealed for a place opens for that place alone.
type Sealer interface {
	Seal(value []byte, place string) ([]byte, error)
	// Open returns what was sealed. Its errors tell a wrong key from a damaged value.
	Open(sealed []byte, place string) ([]byte, error)
}

// Sharer is a Store of several machines. They have a key in common, and no key ring.
type Sharer interface {
	// Sealer returns the sealer of that key for one purpose: what one machine seals, another can open.
	Sealer(purpose string) (Sealer, error)
}

// As returns the store, or one that it wraps, which has methods of its own, such as those of a Sharer.
func As[T any](s Store) (found T, ok bool) {
	for s != nil {
		if found, ok = s.(T); ok {
			break
		}
		wrapper, wraps := s.(interface{ Unwrap() Store })
		if !wraps {
			break
		}
		s = wrapper.Unwrap()
	}
	return found, ok
}

// FreshTime is how long the entries of this process count as fresh after they were compared with the store.
const FreshTime = 10 * time.Second

// Cut returns the part of a value that a List returns.
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

// Txn is a transaction: Then is applied if every condition of If holds. Of several operations on one key the last one
// is applied.
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
	Lease  string // the owner of the lease that the entry ends with; empty for none
}

// Changes is what a Watch returns: the keys that have been changed or deleted, each once, in the order of their latest
// change. With Gap the store no longer knows which keys: the caller reads everything again.
type Changes struct {
	Keys  []string
	Gap   bool
	Index uint64 // to go on from
}

// Lease binds entries to an owner that may end without cleaning up, such as an allocation. It ends when the last holder
// closes it or exits. From then on no read returns its entries. They are deleted, which Watch reports within two
// seconds wherever the store is open.
type Lease interface {
	Owner() string

	// Files returns the files that another process keeps open to hold the lease without this one: a keeper does so
	// while its agent is away. A store that gives an absent holder time instead has none.
	Files() []*os.File

	// Close ends this process's hold.
	Close() error
}

// Leaver is a Lease of a store that gives an absent holder time. After Leave, Close takes no entry away: they stay for
// that time, in which another process may hold the lease.
type Leaver interface{ Leave() }
