package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/etcd/client"
	"taskapi/allocrunner/cluster/internal/table"
)

const (
	// history is how many revisions before the present one the table begins with: a caller goes on from the index that
	// another process has read. A caller that is further behind reads everything again. A large store begins with few:
	// etcd sends all of their values.
	history, shortHistory = 256, 4
	largeStore            = 1 << 20
	// The bounds of a page. The next page has more entries after a small one.
	firstPage, lastPage = 8, 4096
	smallPage           = 1 << 20
	// The copy may exceed the bounds of a store a little, since several machines write at once.
	maxEntries, maxBytes = cluster.MaxEntries * 5 / 4, cluster.MaxBytes * 5 / 4
)

var (
	errTooMuch = errors.New("etcd has more below this prefix than a store may keep")
	errBack    = errors.New("etcd's revision went back: a backup was restored, or another etcd answers. Restart the " +
		"processes of taskapi to accept that")
)

// follow reads the table where that is needed, and then changes it with the store, until that fails.
func (c *core) follow() error {
	c.mu.RLock()
	read, broken, index := c.loaded && !c.behind, c.broken, c.table.Index
	c.mu.RUnlock()
	if broken != nil {
		return broken
	}
	if !read {
		if err := c.load(); err != nil {
			return err
		}
		c.mu.RLock()
		index = c.table.Index
		c.mu.RUnlock()
	}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	w, err := c.client.Watch(ctx, c.config.Prefix, index+1)
	if err != nil {
		return err
	}
	defer func() { w.Close(err != nil) }()
	c.mu.Lock()
	c.failed, c.endWatch, c.heard = nil, cancel, w.Heard
	c.announceLocked()
	c.mu.Unlock()
	var events []client.Event
	size := 0
	for {
		r, next := w.Next()
		if err = next; err != nil {
			return err
		}
		if r.Compacted > 0 {
			c.mu.Lock()
			c.behind = true
			c.mu.Unlock()
			return fmt.Errorf("etcd has forgotten changes after index %d", index)
		}
		if r.Canceled {
			err = fmt.Errorf("etcd ends the watch: %.300q", r.Reason)
			return err
		}
		for _, e := range r.Events {
			size += len(e.KV.Key) + len(e.KV.Value)
		}
		if size > 2*cluster.MaxBytes {
			return errTooMuch
		}
		if events = append(events, r.Events...); r.Fragment {
			continue
		}
		if err = c.apply(events); err != nil {
			return err
		}
		events, size = nil, 0
	}
}

// checkHeader refuses an answer of another cluster, and one that is older than what is known.
func (c *core) checkHeader(h client.Header, index uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.cluster == 0:
		c.cluster = h.ClusterID
	case c.cluster != h.ClusterID, h.Revision < index:
		c.broken = fmt.Errorf("%w: %w (it was %d and is %d)", cluster.ErrUnavailable, errBack, index, h.Revision)
		c.endWatch()
		c.table.WakeAll()
		c.announceLocked()
	}
	return c.broken
}

// load reads all entries, as they were a little ago: the watch brings the changes since.
func (c *core) load() error {
	c.mu.RLock()
	known := c.table.Index
	c.mu.RUnlock()
	now, err := c.client.Range(c.ctx, client.RangeRequest{Key: c.key(head, ""), Count: true})
	if err != nil {
		return err
	}
	if err := c.checkHeader(now.Header, known); err != nil {
		return err
	}
	revision := now.Header.Revision
	if revision == 0 {
		return errors.New("etcd does not say at which revision it is")
	}
	kvs, size, err := c.readAll(revision)
	if err != nil {
		return err
	}
	if err := c.foreign(kvs); err != nil {
		return err
	}
	back := uint64(history)
	if size > largeStore {
		back = shortHistory
	}
	at := max(revision-min(back, revision-1), min(known, revision))
	if earlier, _, err := c.readAll(at); err == nil { // else etcd has forgotten that revision
		kvs, revision = earlier, at
	}
	next, records := table.New[value](), map[string]ownerRecord{}
	changes := make([]*table.Change[value], 0, len(kvs))
	for _, kv := range kvs {
		if kind, name := c.place(kv.Key); kind == entries {
			changes = append(changes, c.change(name, kv))
		} else if kind == owners {
			if r, change, err := c.ownerChange(name, kv); err == nil {
				records[name] = r
				changes = append(changes, change)
			}
		}
	}
	next.Load(revision, changes)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.table.Adopt(next, true)
	c.owners, c.loaded, c.behind = records, true, false
	c.reloads++
	for l := range c.holds {
		l.adoptLocked()
	}
	c.announceLocked()
	return nil
}

// foreign returns an error if there are entries, and none of them opens with the machine's key.
func (c *core) foreign(kvs []client.KV) error {
	count := 0
	for _, kv := range kvs {
		if kind, name := c.place(kv.Key); kind == entries {
			if _, _, _, err := c.openEntry(name, kv.Value); err == nil {
				return nil
			}
			count++
		}
	}
	if count == 0 {
		return nil
	}
	return fmt.Errorf("none of the %d values that are kept there opens with the key of this machine: cluster.key_file "+
		"must have the same content on all machines", count)
}

// readAll reads all keys as they were at a revision.
func (c *core) readAll(revision uint64) (all []client.KV, size int, err error) {
	from, end := []byte(c.config.Prefix), client.PrefixEnd(c.config.Prefix)
	limit := firstPage
	for {
		page, err := c.client.Range(c.ctx, client.RangeRequest{Key: from, End: end, Limit: limit, Revision: revision})
		if err != nil {
			return nil, 0, err
		}
		read := 0
		for _, kv := range page.KVs {
			if string(kv.Key) < string(from) || kv.ModRevision == 0 || kv.ModRevision > revision {
				return nil, 0, fmt.Errorf("etcd answers for %.100q with %.100q of revision %d", from, kv.Key, kv.ModRevision)
			}
			from = append(slices.Clip(kv.Key), 0)
			read += len(kv.Key) + len(kv.Value)
		}
		size += read
		all = append(all, page.KVs...)
		if len(all) > maxEntries || size > maxBytes {
			return nil, 0, fmt.Errorf("%w: %d keys and %d bytes, %q", errTooMuch, len(all), size, c.config.Prefix)
		}
		if !page.More || len(page.KVs) == 0 {
			return all, size, nil
		}
		if read < smallPage {
			limit = min(2*limit, lastPage)
		} else {
			limit = firstPage
		}
	}
}

// change returns the change that wrote an entry.
func (c *core) change(key string, kv client.KV) *table.Change[value] {
	change := &table.Change[value]{Index: kv.ModRevision}
	change.Key, change.CreateIndex, change.ModifyIndex = key, kv.CreateRevision, kv.ModRevision
	owner, born, bytes, err := c.openEntry(key, kv.Value)
	change.Value = value{bytes: bytes, born: kv.CreateRevision, damaged: err != nil}
	change.Lease, change.Size = owner, len(bytes)
	switch {
	case born == bornNow:
		change.CreateIndex = kv.ModRevision
	case born != 0 && born < kv.ModRevision:
		change.CreateIndex = born
	}
	if change.CreateIndex == 0 || change.CreateIndex > kv.ModRevision {
		change.CreateIndex = kv.ModRevision
	}
	return change
}

// ownerChange returns the record of a lease, and the change of the table. In the table the index of the lease is the
// revision that began the record.
func (c *core) ownerChange(owner string, kv client.KV) (ownerRecord, *table.Change[value], error) {
	r, err := c.openOwner(owner, kv.Value)
	if err != nil {
		return r, nil, err
	}
	r.create, r.modify = kv.CreateRevision, kv.ModRevision
	change := &table.Change[value]{Index: kv.ModRevision}
	change.Key, change.CreateIndex, change.ModifyIndex = table.LeaseKey(owner), kv.CreateRevision, kv.CreateRevision
	return r, change, nil
}

// apply changes the table as the store was changed.
func (c *core) apply(events []client.Event) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(events) > 0 {
		revision := events[0].KV.ModRevision
		n := 1
		for n < len(events) && events[n].KV.ModRevision == revision {
			n++
		}
		if revision > c.table.Index {
			c.applyOneLocked(revision, events[:n])
		}
		if revision == 0 || revision == math.MaxUint64 || n < len(events) && events[n].KV.ModRevision < revision {
			return fmt.Errorf("etcd reports changes in a wrong order: %d", revision)
		}
		events = events[n:]
	}
	c.announceLocked()
	if c.table.Len() > maxEntries || c.table.Bytes() > maxBytes {
		c.behind = true
		return fmt.Errorf("%w: %d entries and %d bytes", errTooMuch, c.table.Len(), c.table.Bytes())
	}
	return nil
}

// applyOneLocked applies the changes of one revision.
func (c *core) applyOneLocked(revision uint64, events []client.Event) {
	var changes []*table.Change[value]
	for _, e := range events {
		kind, name := c.place(e.KV.Key)
		switch {
		case kind == head:
			if _, mine := c.pending[string(e.KV.Value)]; mine && !e.Deleted() {
				c.pending[string(e.KV.Value)] = revision
			}
		case kind == entries && e.Deleted():
			changes = append(changes, gone(name, revision))
		case kind == entries:
			changes = append(changes, c.change(name, e.KV))
		case kind == owners && !e.Deleted():
			r, change, err := c.ownerChange(name, e.KV)
			if err != nil {
				continue // the lease can be used by nobody, and ends
			}
			c.owners[name] = r
			changes = append(changes, change)
		case kind == owners:
			delete(c.owners, name)
			changes = append(changes, gone(table.LeaseKey(name), revision))
		}
	}
	for l := range c.holds {
		l.noteLocked(changes)
	}
	c.table.Load(revision, changes)
}

func gone(key string, revision uint64) *table.Change[value] {
	change := &table.Change[value]{Index: revision, Delete: true}
	change.Key = key
	return change
}
