package table

import (
	"slices"
	"sort"
	"strings"

	"taskapi/allocrunner/cluster"
)

// maxRecent is how many of the latest changes are known at least. Who has seen none of them reads everything again.
const maxRecent = 2048

type change struct {
	index uint64
	key   string
}

func (t *Table[V]) note(c change) {
	if len(t.recent) == 2*maxRecent {
		t.forgotten = t.recent[maxRecent-1].index
		t.recent = slices.Delete(t.recent, 0, maxRecent)
	}
	t.recent = append(t.recent, c)
	for w := range t.waiters {
		if !strings.HasPrefix(c.key, leasePrefix) && strings.HasPrefix(c.key, w.prefix) {
			w.wake()
		}
	}
}

// Forget says that changes up to an index are not known, and wakes all who wait.
func (t *Table[V]) Forget(index uint64) {
	t.recent, t.forgotten = nil, index
	t.WakeAll()
}

// WakeAll has all who wait look for themselves.
func (t *Table[V]) WakeAll() {
	for w := range t.waiters {
		w.wake()
	}
}

// Since returns what has been changed after an index, and whether there was anything.
func (t *Table[V]) Since(prefix string, after uint64) (cluster.Changes, bool) {
	changes := cluster.Changes{Index: t.Index, Gap: after < t.forgotten}
	if changes.Gap {
		return changes, true
	}
	from := sort.Search(len(t.recent), func(i int) bool { return t.recent[i].index > after })
	seen := map[string]bool{}
	for _, c := range slices.Backward(t.recent[from:]) {
		if strings.HasPrefix(c.key, prefix) && !strings.HasPrefix(c.key, leasePrefix) && !seen[c.key] {
			seen[c.key] = true
			changes.Keys = append(changes.Keys, c.key)
		}
	}
	slices.Reverse(changes.Keys)
	return changes, len(changes.Keys) > 0
}

// Waiter is one who waits for a change.
type Waiter struct {
	Changed chan struct{} // gets an element when something with the prefix was changed
	prefix  string
}

func (w *Waiter) wake() {
	select {
	case w.Changed <- struct{}{}:
	default: // it has not looked since the last
	}
}

// Wait adds one who waits for changes of keys with the prefix, until Leave.
func (t *Table[V]) Wait(prefix string) *Waiter {
	w := &Waiter{Changed: make(chan struct{}, 1), prefix: prefix}
	t.waiters[w] = struct{}{}
	return w
}

// Leave removes one who waits.
func (t *Table[V]) Leave(w *Waiter) { delete(t.waiters, w) }
