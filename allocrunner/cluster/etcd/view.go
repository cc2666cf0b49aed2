package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/etcd/client"
	"taskapi/allocrunner/cluster/internal/table"
	"taskapi/internal/wake"
)

const (
	// lookInterval is how often an unread copy may be compared with etcd: each time if the copy's freshness matters or
	// its endpoint has not answered, otherwise after compareInterval.
	lookInterval    = cluster.FreshTime / 2
	compareInterval = 30 * time.Second
	// idleTime is how long a copy is kept that nobody reads or watches.
	idleTime = 10 * time.Minute
	// lagTime is how long the watch may be silent while a change has to arrive. Then it is begun again.
	lagTime = 2 * time.Second
	// silenceTimeout is how long a reader waits for a change while nothing arrives.
	silenceTimeout = 10 * time.Second

	// mostViews is how many copies a process has before it takes one copy for all keys that begin alike.
	mostViews = 8
	// The bounds of a page. The next page has more entries after a small one.
	firstPage, lastPage = 64, 4096
	smallPage           = 1 << 20
	// The copy may exceed the bounds a little, since several machines write at once.
	maxEntries, maxBytes = cluster.MaxEntries * 5 / 4, cluster.MaxBytes * 5 / 4
)

var errTooMuch = errors.New("etcd has more below this prefix than a process may keep")

// view is a copy of all entries with a prefix. Its table has the entries that etcd had at the revision table.Index.
type view struct {
	*core
	prefix string
	ctx    context.Context
	cancel context.CancelFunc

	// core.mu guards the fields below.
	table    *table.Table[value]
	loaded   bool          // the table has been read
	behind   bool          // the table has to be read again
	differs  bool          // the table may have a state that etcd never had, such as after a backup was restored
	lost     uint64        // the changes up to this index are not known, whatever etcd says
	failed   error         // why the table can't be kept up to date; nil when it can
	asked    time.Time     // the table has every Commit that returned before this time
	own      uint64        // the index of this process's latest Commit to an entry of the view
	users    int           // calls that use the view
	used     time.Time     // when the latest of them ended
	changed  chan struct{} // closed and replaced with each change of these fields
	endWatch func()        // begins the watch again, at another endpoint
	watch    *client.Watch // nil before the first one
	judged   time.Time     // when FreshUntil was called last
}

// value is what the table has of an entry's value.
type value struct {
	bytes   []byte
	damaged bool
}

// alive is for the table: etcd deletes the entries of a lease that ends.
func alive(uint64) bool { return true }

// view returns a copy that has all entries with a prefix, once it has been read. The caller leaves it.
func (s *Store) view(ctx context.Context, prefix string) (*view, error) {
	if err := s.use(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	if s.users == 0 {
		s.mu.Unlock()
		return nil, errClosed
	}
	v := s.viewLocked(prefix)
	v.users++
	s.mu.Unlock()
	if err := v.ready(ctx); err != nil {
		v.leave()
		return nil, err
	}
	return v, nil
}

func (c *core) viewLocked(prefix string) *view {
	covers := func(v *view) bool { return v.covers(prefix) }
	at := slices.IndexFunc(c.views, covers)
	if at < 0 && len(c.views) >= mostViews {
		root, _, slash := strings.Cut(prefix, "/")
		if prefix = root + "/"; !slash {
			prefix = ""
		}
		at = slices.IndexFunc(c.views, covers)
	}
	if at >= 0 {
		return c.views[at]
	}
	v := &view{core: c, prefix: prefix, table: table.New[value](), changed: make(chan struct{}), endWatch: func() {}}
	v.ctx, v.cancel = context.WithCancel(c.ctx)
	c.views = append(c.views, v)
	c.work.Go(v.run)
	c.work.Go(v.compare)
	return v
}

// covers reports whether the view has all entries with a prefix.
func (v *view) covers(prefix string) bool { return strings.HasPrefix(prefix, v.prefix) }

// leave ends a call's use of the view.
func (v *view) leave() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.users--
	v.used = time.Now()
}

// ready waits until the table has been read, or can't be.
func (v *view) ready(ctx context.Context) error {
	for {
		v.mu.RLock()
		loaded, err, broken, changed := v.loaded, v.failed, v.broken, v.changed
		v.mu.RUnlock()
		switch {
		case broken != nil || loaded:
			return broken
		case err != nil:
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return silent(ctx)
		case <-v.core.ctx.Done():
			return errClosed
		}
	}
}

// announceLocked wakes those who wait for a change of the view.
func (v *view) announceLocked() {
	close(v.changed)
	v.changed = make(chan struct{})
}

// run keeps the table up to date until the view ends.
func (v *view) run() {
	pause := wake.Backoff{First: firstPause, Last: lastPause}
	for v.ctx.Err() == nil {
		began := time.Now()
		err := v.follow()
		if time.Since(began) > lastPause {
			pause.Reset()
		}
		v.mu.Lock()
		v.failed = unavailable(err)
		v.announceLocked()
		v.mu.Unlock()
		if errors.Is(err, errTooMuch) {
			_ = wake.Sleep(v.ctx, wake.Jitter(fullPause)) // the loop sees that ctx has ended
		} else {
			_ = pause.Sleep(v.ctx)
		}
	}
}

// compare compares the table with etcd again and again, so that it stays fresh and a watch that has died is noticed. It
// ends a view that nobody uses.
func (v *view) compare() {
	defer v.cancel()
	for {
		_ = wake.Sleep(v.ctx, lookInterval*3/4+rand.N(lookInterval/2))
		now := time.Now()
		if v.ctx.Err() != nil || v.endIdle(now) {
			return
		}
		v.mu.RLock()
		age := compareInterval
		if now.Sub(v.judged) < idleTime || v.watch != nil && v.watch.Moved() {
			age = lookInterval / 2
		}
		v.mu.RUnlock()
		_ = v.sync(v.ctx, now.Add(-age)) // a failure shows in FreshUntil
	}
}

// endIdle removes the view if nobody has used it for long. While etcd is away it stays.
func (v *view) endIdle(now time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.users > 0 || now.Sub(v.used) < idleTime || v.loaded && v.failed != nil {
		return false
	}
	v.views = slices.DeleteFunc(v.views, func(other *view) bool { return other == v })
	return true
}

// follow reads the table where that is needed, and then changes it as the store changes, until that fails.
func (v *view) follow() error {
	v.mu.RLock()
	read, broken := v.loaded && !v.behind, v.broken
	v.mu.RUnlock()
	if broken != nil {
		return broken
	}
	if !read {
		if err := v.load(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(v.ctx)
	defer cancel()
	v.mu.RLock()
	index := v.table.Index
	v.mu.RUnlock()
	w, err := v.client.Watch(ctx, string(v.key(entries, v.prefix)), index+1)
	if err != nil {
		return err
	}
	defer func() { w.Close(err != nil) }()
	v.mu.Lock()
	v.failed, v.endWatch, v.watch = nil, cancel, w
	v.announceLocked()
	v.mu.Unlock()
	var events []client.Event
	size := 0
	for {
		r, next := w.Next()
		if err = next; err != nil {
			return err
		}
		if r.Compacted > 0 {
			v.mu.Lock()
			v.behind = true
			v.mu.Unlock()
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
		if err = v.apply(events); err != nil {
			return err
		}
		events, size = nil, 0
	}
}

// load reads all entries.
func (v *view) load() error {
	asked := time.Now()
	kvs, index, err := v.readAll(client.RangeRequest{Key: v.key(entries, v.prefix)})
	if err != nil {
		return err
	}
	changes := make([]*table.Change[value], 0, len(kvs))
	for _, kv := range kvs {
		changes = append(changes, v.change(kv))
	}
	next := table.New[value]()
	next.Load(index, changes)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.table.Adopt(next, true)
	if v.differs {
		v.lost = index
	}
	v.loaded, v.behind, v.differs, v.asked = true, false, false, asked
	v.announceLocked()
	return nil
}

// readAll reads all keys with the prefix that is the request's key, as they are at one revision. It returns the
// revision, too.
func (c *core) readAll(r client.RangeRequest) (all []client.KV, revision uint64, err error) {
	size := 0
	revision, err = c.pages(c.ctx, r, func(kvs []client.KV) error {
		for _, kv := range kvs {
			size += len(kv.Key) + len(kv.Value)
		}
		all = append(all, kvs...)
		if len(all) > maxEntries || size > maxBytes {
			return fmt.Errorf("%w: %d keys and %d bytes, %q", errTooMuch, len(all), size, r.Key)
		}
		return nil
	})
	return all, revision, err
}

// pages reads what readAll reads, in parts, until use returns an error.
func (c *core) pages(
	ctx context.Context, r client.RangeRequest, use func([]client.KV) error,
) (revision uint64, err error) {
	prefix := string(r.Key)
	r.End, r.Limit = client.PrefixEnd(prefix), firstPage
	for {
		page, err := c.find(ctx, r)
		if err != nil {
			return 0, err
		}
		if r.Revision == 0 {
			r.Revision = page.Header.Revision
		}
		read := 0
		for _, kv := range page.KVs {
			if string(kv.Key) < string(r.Key) || !strings.HasPrefix(string(kv.Key), prefix) || kv.ModRevision == 0 ||
				kv.ModRevision > r.Revision {
				return 0, fmt.Errorf("etcd answers for %.100q with %.100q of revision %d", r.Key, kv.Key, kv.ModRevision)
			}
			r.Key = append(slices.Clip(kv.Key), 0)
			read += len(kv.Key) + len(kv.Value)
		}
		if err := use(page.KVs); err != nil {
			return 0, err
		}
		if !page.More || len(page.KVs) == 0 {
			return r.Revision, nil
		}
		if read < smallPage {
			r.Limit = min(2*r.Limit, lastPage)
		} else {
			r.Limit = firstPage
		}
	}
}

// change returns the change that wrote an entry.
func (v *view) change(kv client.KV) *table.Change[value] {
	e := v.entry(v.name(kv), []client.KV{kv})
	change := &table.Change[value]{Index: kv.ModRevision}
	change.Meta = table.Meta{Key: e.Key, Lease: e.Lease, CreateIndex: e.CreateIndex, ModifyIndex: e.ModifyIndex,
		Size: len(e.Value)}
	change.Value = value{e.Value, e.Damaged}
	return change
}

// name returns the key of the entry that a key of etcd has.
func (c *core) name(kv client.KV) string {
	return strings.TrimPrefix(string(kv.Key), c.config.Prefix+entries)
}

// apply changes the table as the store was changed.
func (v *view) apply(events []client.Event) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for len(events) > 0 {
		revision := events[0].KV.ModRevision
		var changes []*table.Change[value]
		n := 0
		for ; n < len(events) && events[n].KV.ModRevision == revision; n++ {
			e := &events[n]
			if !strings.HasPrefix(string(e.KV.Key), string(v.key(entries, v.prefix))) {
				continue
			}
			change := v.change(e.KV)
			change.Delete = e.Deleted()
			changes = append(changes, change)
		}
		if revision == 0 || revision == math.MaxUint64 || n < len(events) && events[n].KV.ModRevision < revision {
			return fmt.Errorf("etcd reports changes in a wrong order: %d", revision)
		}
		if revision > v.table.Index {
			v.table.Load(revision, changes)
		}
		events = events[n:]
	}
	v.known = max(v.known, v.table.Index)
	v.announceLocked()
	if v.table.Len() > maxEntries || v.table.Bytes() > maxBytes {
		v.behind = true
		return fmt.Errorf("%w: %d entries and %d bytes", errTooMuch, v.table.Len(), v.table.Bytes())
	}
	return nil
}
