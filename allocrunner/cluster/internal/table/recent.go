package table

import (
	"context"
	"slices"
	"sort"
	"strings"
	"sync"

	"taskapi/allocrunner/cluster"
	"taskapi/internal/wake"
)

// maxRecent is how many of the latest changes are known at least. A caller that is further behind reads everything
// again.
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
			w.changed.Send()
		}
	}
}

// Forget notes that changes up to an index are not known, and wakes all who wait.
func (t *Table[V]) Forget(index uint64) {
	t.recent, t.forgotten = nil, index
	t.WakeAll()
}

// WakeAll wakes all who wait: they look for changes themselves.
func (t *Table[V]) WakeAll() {
	for w := range t.waiters {
		w.changed.Send()
	}
}

// since returns the changes after an index, and whether there are any.
func (t *Table[V]) since(prefix string, after uint64) (cluster.Changes, bool) {
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

// Changed reports whether Await returns at once.
func (t *Table[V]) Changed(prefix string, after uint64) bool {
	_, changed := t.since(prefix, after)
	return changed
}

// waiter is one call of Await.
type waiter struct {
	changed wake.Signal // something with the prefix was changed
	prefix  string
}

// Await waits until a key with the prefix is changed after an index, and returns all such changes so far. mu guards the
// table. Await calls check, with mu held, before each look at the table, also when ctx or the store ends; an error of
// check ends the wait.
func (t *Table[V]) Await(
	ctx context.Context, mu sync.Locker, ended <-chan struct{}, prefix string, after uint64, check func() error,
) (cluster.Changes, error) {
	mu.Lock()
	defer mu.Unlock()
	w := &waiter{changed: wake.New(), prefix: prefix}
	t.waiters[w] = struct{}{}
	defer delete(t.waiters, w)
	for {
		if err := check(); err != nil {
			return cluster.Changes{}, err
		}
		if changes, ok := t.since(prefix, after); ok {
			return changes, nil
		}
		mu.Unlock()
		select {
		case <-w.changed:
		case <-ended:
		case <-ctx.Done():
		}
		mu.Lock()
	}
}
