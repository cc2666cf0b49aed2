package table

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"taskapi/allocrunner/cluster"
)

// Plan returns the writes of a transaction, at most one for each key, or the key of the first condition that does not
// hold. Errors: cluster.ErrLeaseEnded, cluster.ErrFull.
func (t *Table[V]) Plan(txn cluster.Txn, live func(lease uint64) bool) (writes []Write, conflict string, err error) {
	for _, c := range txn.If {
		var index uint64
		if e := t.Live(c.Key, live); e != nil {
			index = e.ModifyIndex
		}
		if index != c.ModifyIndex {
			return nil, c.Key, nil
		}
	}
	last := map[string]Write{}
	for _, op := range txn.Then {
		w := Write{Meta: Meta{Key: op.Key, Lease: op.Lease, Size: len(op.Value)}, Value: op.Value, Delete: op.Delete}
		if w.Lease != "" {
			lease := t.Lease(w.Lease)
			if lease == 0 || !live(lease) {
				return nil, "", fmt.Errorf("%w: nobody holds that of %s", cluster.ErrLeaseEnded, w.Lease)
			}
			w.LeaseIndex = lease
		}
		if e := t.Live(op.Key, live); e != nil && !w.Delete {
			w.CreateIndex = e.CreateIndex
		}
		last[op.Key] = w
	}
	for _, key := range slices.Sorted(maps.Keys(last)) {
		if w := last[key]; !w.Delete || t.Get(key) != nil {
			writes = append(writes, w)
		}
	}
	return writes, "", t.fits(writes)
}

// fits returns cluster.ErrFull for writes that need more room than before, and more than there may be.
func (t *Table[V]) fits(writes []Write) error {
	entries, bytes := 0, 0
	for _, w := range writes {
		if e := t.Get(w.Key); e != nil {
			entries, bytes = entries-1, bytes-e.bytes()
		}
		if !w.Delete {
			entries, bytes = entries+1, bytes+w.bytes()
		}
	}
	switch {
	case entries > 0 && len(t.entries)+entries > cluster.MaxEntries:
		return fmt.Errorf("%w: it has %d entries of %d; delete some", cluster.ErrFull, len(t.entries),
			cluster.MaxEntries)
	case bytes > 0 && t.bytes+bytes > t.MaxBytes:
		return fmt.Errorf("%w: it has %d bytes of %d, and this needs %d more; delete something", cluster.ErrFull,
			t.bytes, t.MaxBytes, bytes)
	}
	return nil
}

// Lease returns the index of an owner's latest lease; 0 for none.
func (t *Table[V]) Lease(owner string) uint64 {
	if e := t.Get(leasePrefix + owner); e != nil {
		return e.ModifyIndex
	}
	return 0
}

// BeginLease returns the writes of a new lease. Its index is that of the commit. The owner's entries with an earlier
// lease are not part of it.
func (t *Table[V]) BeginLease(owner string) ([]Write, error) {
	writes := []Write{{Meta: Meta{Key: leasePrefix + owner}}}
	return writes, t.fits(writes)
}

// HasLeases reports whether there are leases that may end.
func (t *Table[V]) HasLeases() bool { return len(t.leases) > 0 }

// Ended returns the writes that delete the leases that have ended, with all of their entries.
func (t *Table[V]) Ended(live func(lease uint64) bool) (writes []Write) {
	ended := false
	for lease := range t.leases {
		ended = ended || !live(lease)
	}
	if !ended { // the common case: the entries need not be looked at
		return nil
	}
	for _, e := range t.entries {
		if !e.alive(live) || strings.HasPrefix(e.Key, leasePrefix) && !live(e.ModifyIndex) {
			writes = append(writes, Write{Meta: Meta{Key: e.Key}, Delete: true})
		}
	}
	return writes
}
