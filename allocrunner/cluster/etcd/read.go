package etcd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/etcd/client"
	"taskapi/allocrunner/cluster/internal/table"
)

// question is a read of etcd. All callers that begin to wait before the read is sent share its answer.
type question struct {
	answered chan struct{}
	asked    time.Time
	found    client.RangeResponse
	err      error
}

// ask sends a read after it is called, perhaps one read for several callers, and returns the read with its answer.
func (c *core) ask(ctx context.Context, r client.RangeRequest) (*question, error) {
	id := string(r.Key) + "\x00" + string(r.End)
	c.asking.Lock()
	q := c.asking.next[id]
	if q == nil {
		q = &question{answered: make(chan struct{})}
		c.mu.Lock()
		ended := c.users == 0
		if !ended {
			c.work.Go(func() { c.answer(q, id, r) })
		}
		c.mu.Unlock()
		if ended {
			c.asking.Unlock()
			return nil, errClosed
		}
		c.asking.next[id] = q
	}
	c.asking.Unlock()
	select {
	case <-q.answered:
		return q, q.err
	case <-ctx.Done():
		return nil, silent(ctx)
	}
}

func (c *core) answer(q *question, id string, r client.RangeRequest) {
	defer close(q.answered)
	select {
	case c.asking.turn <- struct{}{}:
		defer func() { <-c.asking.turn }()
	case <-c.ctx.Done():
	}
	c.asking.Lock()
	delete(c.asking.next, id)
	c.asking.Unlock()
	ctx, cancel := context.WithTimeout(c.ctx, arriveTimeout)
	defer cancel()
	q.asked = time.Now()
	q.found, q.err = c.find(ctx, r)
}

// Get returns an entry.
func (s *Store) Get(ctx context.Context, key string) (cluster.Entry, uint64, error) {
	if err := s.use(ctx); err != nil {
		return cluster.Entry{}, 0, err
	}
	q, err := s.ask(ctx, client.RangeRequest{Key: s.key(entries, key)})
	if err != nil {
		return cluster.Entry{}, 0, s.failure(ctx, err)
	}
	return s.entry(key, q.found.KVs), q.found.Header.Revision, nil
}

// List returns entries.
func (s *Store) List(ctx context.Context, span cluster.Span) (page cluster.Page, err error) {
	began := time.Now()
	v, err := s.view(ctx, span.Prefix)
	if err != nil {
		return page, err
	}
	defer v.leave()
	if span.Local {
		err = v.reachOwn(ctx)
	} else {
		err = v.failure(ctx, v.sync(ctx, began))
	}
	if err != nil {
		return page, err
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	all, more := v.table.List(span, alive)
	page = cluster.Page{More: more, Index: v.table.Index, Entries: make([]cluster.Entry, 0, len(all))}
	for _, e := range all {
		found := e.Found(span.Cut(e.Value.bytes))
		found.Damaged = e.Value.damaged
		page.Entries = append(page.Entries, found)
	}
	return page, nil
}

// FreshUntil returns until when the copy of a prefix counts as fresh. From the first call on, the copy is kept fresh.
func (c *core) FreshUntil(prefix string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := slices.IndexFunc(c.views, func(v *view) bool { return v.covers(prefix) }) // which a List reads
	if at < 0 || !c.views[at].loaded {
		return time.Time{}
	}
	v := c.views[at]
	v.judged = time.Now()
	return v.asked.Add(cluster.FreshTime)
}

// sync waits until the table has every Commit that returned before a time. It asks etcd how many entries there are, and
// at which revision the latest of them was written: a table at that revision, or a later one, that has as many entries
// has the same.
func (v *view) sync(ctx context.Context, since time.Time) error {
	v.mu.RLock()
	already := !v.asked.Before(since) && !v.behind
	v.mu.RUnlock()
	if already {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, arriveTimeout)
	defer cancel()
	prefix := v.key(entries, v.prefix)
	q, err := v.ask(ctx, client.RangeRequest{Key: prefix, End: client.PrefixEnd(string(prefix)), Limit: 1, KeysOnly: true,
		Order: "DESCEND", Target: "MOD"})
	if err != nil {
		return err
	}
	var written uint64
	if len(q.found.KVs) > 0 {
		written = q.found.KVs[0].ModRevision
	}
	return v.reach(ctx, func() bool {
		now := q.found.Header.Revision
		if v.behind || v.table.Index < now && (v.table.Index < written || v.table.Len() != q.found.Count) {
			return false
		}
		v.table.Index = max(v.table.Index, now) // nothing has changed up to there
		if q.asked.After(v.asked) {
			v.asked = q.asked
		}
		return true
	})
}

// reach waits until there returns true. It calls there with core.mu held. If the wait takes long, the watch begins
// again at another endpoint. If a new watch does not help, all entries are read again.
func (v *view) reach(ctx context.Context, there func() bool) error {
	began := time.Now()
	late := time.NewTimer(lagTime)
	defer late.Stop()
	for {
		v.mu.Lock()
		reached, err, broken := there(), v.failed, v.broken
		changed, endWatch, heard := v.changed, v.endWatch, time.Now()
		if v.watch != nil {
			heard = v.watch.Heard()
		}
		v.mu.Unlock()
		if broken != nil || reached {
			return broken
		}
		if err == nil {
			err = fmt.Errorf("changes of %q have not arrived", v.prefix)
		}
		select {
		case <-changed:
		case <-late.C:
			if time.Since(heard) >= lagTime {
				if time.Since(began) > silenceTimeout {
					v.mu.Lock()
					v.behind, v.differs = true, true
					v.mu.Unlock()
					endWatch()
					return err
				}
				endWatch()
			}
			late.Reset(2 * time.Since(began)) // a busy server sends all changes again
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", err, ctx.Err())
		case <-v.ctx.Done():
			return errClosed
		}
	}
}

// reachOwn waits until the table has every Commit of this process, unless the watch is broken.
func (v *view) reachOwn(ctx context.Context) error {
	v.mu.RLock()
	there := v.table.Index >= v.own || v.failed != nil
	v.mu.RUnlock()
	if there {
		return nil
	}
	waiting, cancel := context.WithTimeout(ctx, lagTime)
	defer cancel()
	_ = v.reach(waiting, func() bool { return v.table.Index >= v.own }) // an older table serves as well
	return ctx.Err()
}

// Watch waits for a change. It goes on waiting while etcd is away.
func (s *Store) Watch(ctx context.Context, prefix string, after uint64) (cluster.Changes, error) {
	v, err := s.view(ctx, prefix)
	if err != nil {
		return cluster.Changes{}, err
	}
	defer v.leave()
	v.mu.RLock()
	late := v.failed == nil && v.table.Changed(prefix, after)
	v.mu.RUnlock()
	if late { // the caller gets all changes at once; a caller that has seen the latest only waits
		looking, cancel := context.WithTimeout(ctx, lagTime)
		_ = v.sync(looking, time.Now())
		cancel()
	}
	for {
		changes, err := v.table.Await(ctx, &v.mu, s.done, prefix, after, func() error {
			select {
			case <-s.done:
				return errClosed
			default:
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			return v.broken
		})
		v.mu.RLock()
		lost := after < v.lost
		v.mu.RUnlock()
		if err != nil || !changes.Gap || lost {
			return changes, err
		}
		if changes = v.missed(prefix, after); changes.Gap || len(changes.Keys) > 0 {
			return changes, nil
		}
		after = changes.Index
	}
}

// missed returns the changes after an index that the watch has not reported. It compares the table with the entries
// that etcd had at that index. The result is a gap when etcd has forgotten these entries or does not answer.
func (v *view) missed(prefix string, after uint64) cluster.Changes {
	before := map[string]bool{}
	if after > 0 {
		kvs, _, err := v.readAll(client.RangeRequest{Key: v.key(entries, prefix), Revision: after, KeysOnly: true})
		if err != nil {
			v.mu.RLock()
			defer v.mu.RUnlock()
			return cluster.Changes{Gap: true, Index: v.table.Index}
		}
		for _, kv := range kvs {
			before[v.name(kv)] = true
		}
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	changes := cluster.Changes{Index: v.table.Index}
	now, _ := v.table.List(cluster.Span{Prefix: prefix}, alive)
	now = slices.DeleteFunc(now, func(e *table.Entry[value]) bool {
		delete(before, e.Key)
		return e.ModifyIndex <= after
	})
	slices.SortStableFunc(now, func(a, b *table.Entry[value]) int { return cmp.Compare(a.ModifyIndex, b.ModifyIndex) })
	for key := range before {
		changes.Keys = append(changes.Keys, key)
	}
	for _, e := range now {
		changes.Keys = append(changes.Keys, e.Key)
	}
	return changes
}
