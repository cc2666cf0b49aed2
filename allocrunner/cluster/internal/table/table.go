// Package table is the common part of the stores of cluster, in memory: the entries by key, the latest changes, the
// leases, and the callers that wait for a change. It plans the writes of a transaction. It holds no values: V says
// where a value is. The store locks the table.
package table

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"

	"taskapi/allocrunner/cluster"
)

// Meta holds the data of an entry besides its value.
type Meta struct {
	Key, Lease               string
	LeaseIndex               uint64 // which of the owner's leases; 0 for none
	CreateIndex, ModifyIndex uint64
	Size                     int // of the value, in bytes
}

// bytes returns how many bytes of the store's bound the entry takes.
func (m *Meta) bytes() int { return len(m.Key) + len(m.Lease) + m.Size }

// Found returns the entry with its value.
func (m *Meta) Found(value []byte) cluster.Entry {
	return cluster.Entry{Key: m.Key, Value: value, Lease: m.Lease,
		CreateIndex: m.CreateIndex, ModifyIndex: m.ModifyIndex}
}

// Entry is an entry of the table. Value says where the entry's value is.
type Entry[V any] struct {
	Meta
	Value V
}

// Write is one entry that a commit writes or deletes. Indexes of 0 stand for the commit's own index.
type Write struct {
	Meta
	Value           []byte // which Apply does not look at
	Delete, Damaged bool   // Damaged: Value is the bytes of a damaged value
}

// leasePrefix begins the keys of leases. No caller's key begins with it. The ModifyIndex of such an entry is the index
// of the owner's latest lease.
const leasePrefix = "\x00"

// Table holds the entries. New makes one.
type Table[V any] struct {
	Index     uint64
	MaxBytes  int            // the bound of the store
	entries   []*Entry[V]    // by key
	bytes     int            // of all entries
	leases    map[uint64]int // how many entries a lease has, its own included
	recent    []change       // the latest, oldest first
	forgotten uint64         // changes up to this index may be missing in recent
	waiters   map[*waiter]struct{}
}

// New returns an empty table.
func New[V any]() *Table[V] {
	return &Table[V]{Index: 1, MaxBytes: cluster.MaxBytes, leases: map[uint64]int{}, waiters: map[*waiter]struct{}{}}
}

// Adopt replaces the entries by those of another table, and keeps those who wait. With gap, the changes in between are
// not known.
func (t *Table[V]) Adopt(other *Table[V], gap bool) {
	t.Index, t.entries, t.bytes, t.leases = other.Index, other.entries, other.bytes, other.leases
	if gap {
		t.Forget(t.Index)
	}
}

// Bytes returns the size of all keys, owners and values.
func (t *Table[V]) Bytes() int { return t.bytes }

// Len returns the number of entries, leases included.
func (t *Table[V]) Len() int { return len(t.entries) }

func (t *Table[V]) find(key string) (int, bool) {
	return slices.BinarySearchFunc(t.entries, key, func(e *Entry[V], key string) int {
		return strings.Compare(e.Key, key)
	})
}

// Get returns the entry of a key; nil for none.
func (t *Table[V]) Get(key string) *Entry[V] {
	if i, ok := t.find(key); ok {
		return t.entries[i]
	}
	return nil
}

// Entries returns all entries by key, leases included. The slice is the table's own.
func (t *Table[V]) Entries() []*Entry[V] { return t.entries }

// List returns the entries of a span, without those whose lease has ended, and whether the limit left some out.
func (t *Table[V]) List(span cluster.Span, live func(lease uint64) bool) (found []*Entry[V], more bool) {
	from := max(span.Prefix, span.After, leasePrefix+"\xff")
	i, _ := t.find(from)
	for _, e := range t.entries[i:] {
		if !strings.HasPrefix(e.Key, span.Prefix) {
			break
		}
		if e.Key <= span.After && span.After != "" || span.Only != nil && !span.Only(e.Key) || !e.alive(live) {
			continue
		}
		if span.Limit > 0 && len(found) == span.Limit {
			return found, true
		}
		found = append(found, e)
	}
	return found, false
}

func (e *Entry[V]) alive(live func(lease uint64) bool) bool {
	return e.LeaseIndex == 0 || live(e.LeaseIndex)
}

// Live returns the entry of a key while its lease lives; nil for none.
func (t *Table[V]) Live(key string, live func(lease uint64) bool) *Entry[V] {
	if e := t.Get(key); e != nil && e.alive(live) {
		return e
	}
	return nil
}

// Apply performs the writes of the commit with that index. value says where each value is.
func (t *Table[V]) Apply(index uint64, writes []Write, value func(i int) V) {
	changes := make([]*Change[V], len(writes))
	for i, w := range writes {
		changes[i] = &Change[V]{Entry: Entry[V]{w.Meta, value(i)}, Index: index, Delete: w.Delete}
	}
	t.Load(index, changes)
}

// Change is what a commit, whose index it has, wrote or deleted. Indexes of 0 in Meta stand for that index.
type Change[V any] struct {
	Entry[V]
	Index  uint64
	Delete bool
}

// mergeFrom is the number of changes from which rebuilding the list of all entries costs less than changing it in
// place.
const mergeFrom = 64

// Load performs changes, of one commit or of several, the oldest first. The last commit has that index. The table keeps
// the changes.
func (t *Table[V]) Load(index uint64, changes []*Change[V]) {
	t.Index = index
	old := len(changes) - maxRecent
	if old > 0 {
		t.Forget(changes[old-1].Index)
	}
	for i, c := range changes {
		c.CreateIndex, c.ModifyIndex = cmp.Or(c.CreateIndex, c.Index), cmp.Or(c.ModifyIndex, c.Index)
		if i >= old {
			t.note(change{c.Index, c.Key})
		}
	}
	if len(changes) >= mergeFrom {
		t.merge(changes)
		return
	}
	for _, c := range changes {
		at, found := t.find(c.Key)
		if found {
			t.count(t.entries[at], -1)
			c.Key = t.entries[at].Key // which recent may have, too
		}
		switch {
		case c.Delete && found:
			t.entries = slices.Delete(t.entries, at, at+1)
		case !c.Delete && found:
			t.entries[at] = &c.Entry
		case !c.Delete:
			t.entries = slices.Insert(t.entries, at, &c.Entry)
		}
		if !c.Delete {
			t.count(&c.Entry, 1)
		}
	}
}

// merge sorts changes by key, and merges them with the entries. Of the changes of one key the last one counts.
func (t *Table[V]) merge(changes []*Change[V]) {
	sorted := byKey(changes)
	merged := make([]*Entry[V], 0, len(t.entries)+len(changes))
	for i, c := range sorted {
		if i+1 < len(sorted) && sorted[i+1].Key == c.Key {
			continue
		}
		at, found := t.find(c.Key)
		merged, t.entries = append(merged, t.entries[:at]...), t.entries[at:]
		if found {
			t.count(t.entries[0], -1)
			t.entries = t.entries[1:]
		}
		if !c.Delete {
			t.count(&c.Entry, 1)
			merged = append(merged, &c.Entry)
		}
	}
	t.entries = append(merged, t.entries...)
}

// place is the place of a change among others, and the eight bytes of its key that are compared first.
type place struct {
	head uint64
	at   int
}

// byKey returns changes sorted by key, and those of one key in their order. The keys of a store begin alike: the eight
// bytes behind what they share tell most of them apart.
func byKey[V any](changes []*Change[V]) []*Change[V] {
	shared := changes[0].Key
	for _, c := range changes {
		for !strings.HasPrefix(c.Key, shared) {
			shared = shared[:len(shared)-1]
		}
	}
	places := make([]place, len(changes))
	for i, c := range changes {
		var head [8]byte
		copy(head[:], c.Key[len(shared):])
		places[i] = place{binary.BigEndian.Uint64(head[:]), i}
	}
	places = byHead(places)
	for from := 0; from < len(places); {
		to := from + 1
		for to < len(places) && places[to].head == places[from].head {
			to++
		}
		slices.SortStableFunc(places[from:to], func(a, b place) int {
			return strings.Compare(changes[a.at].Key, changes[b.at].Key)
		})
		from = to
	}
	sorted := make([]*Change[V], len(changes))
	for i, p := range places {
		sorted[i] = changes[p.at]
	}
	return sorted
}

// byHead returns places sorted by head, and those of one head in their order. It sorts by one byte after the other, the
// last one first. It leaves out the bytes that all have in common.
func byHead(places []place) []place {
	if slices.IsSortedFunc(places, func(a, b place) int { return cmp.Compare(a.head, b.head) }) {
		return places
	}
	var counts [8][256]int
	for _, p := range places {
		for i := range counts {
			counts[i][byte(p.head>>(8*i))]++
		}
	}
	sorted := make([]place, len(places))
	for i := range counts {
		next := &counts[i]
		if next[byte(places[0].head>>(8*i))] == len(places) {
			continue
		}
		sum := 0
		for value, count := range next {
			next[value], sum = sum, sum+count
		}
		for _, p := range places {
			value := byte(p.head >> (8 * i))
			sorted[next[value]] = p
			next[value]++
		}
		places, sorted = sorted, places
	}
	return places
}

func (t *Table[V]) count(e *Entry[V], by int) {
	t.bytes += by * e.bytes()
	lease := e.LeaseIndex
	if strings.HasPrefix(e.Key, leasePrefix) {
		lease = e.ModifyIndex
	}
	if lease == 0 {
		return
	}
	if t.leases[lease] += by; t.leases[lease] == 0 {
		delete(t.leases, lease)
	}
}
