package etcd

import (
	"context"
	"fmt"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/etcd/client"
	"taskapi/allocrunner/cluster/internal/table"
)

// question asks etcd for the index of the latest Commit. All who begin to wait before it is asked share it.
type question struct {
	answered chan struct{}
	asked    time.Time
	index    uint64
	err      error
}

// ask returns a question that is asked after the call, with its answer.
func (c *core) ask(ctx context.Context) (*question, error) {
	c.asking.Lock()
	q := c.asking.next
	if q == nil {
		q = &question{answered: make(chan struct{})}
		c.mu.Lock()
		ended := c.users == 0
		if !ended {
			c.work.Go(func() { c.answer(q) })
		}
		c.mu.Unlock()
		if ended {
			c.asking.Unlock()
			return nil, errClosed
		}
		c.asking.next = q
	}
	c.asking.Unlock()
	select {
	case <-q.answered:
		return q, q.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *core) answer(q *question) {
	defer close(q.answered)
	select {
	case c.asking.turn <- struct{}{}:
		defer func() { <-c.asking.turn }()
	case <-c.ctx.Done():
	}
	c.asking.Lock()
	c.asking.next = nil
	c.asking.Unlock()
	c.mu.RLock()
	known := c.table.Index
	c.mu.RUnlock()
	ctx, cancel := context.WithTimeout(c.ctx, arriveTimeout)
	defer cancel()
	q.asked = time.Now()
	found, err := c.client.Range(ctx, client.RangeRequest{Key: c.key(head, "")})
	if err == nil {
		err = c.checkHeader(found.Header, known)
	}
	if len(found.KVs) > 0 {
		q.index = found.KVs[0].ModRevision
	}
	q.err = err
}

// sync waits until the table has every Commit that returned before the call.
func (c *core) sync(ctx context.Context) error {
	whole, cancel := context.WithTimeout(ctx, arriveTimeout)
	defer cancel()
	q, err := c.ask(whole)
	if err == nil {
		err = c.reach(whole, q.index)
	}
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return unavailable(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if until := q.asked.Add(cluster.FreshTime); until.After(c.fresh) {
		c.fresh = until
	}
	return nil
}

// reach waits until the table has an index. If that takes long, the watch is begun again, at another endpoint.
func (c *core) reach(ctx context.Context, index uint64) error {
	began := time.Now()
	late := time.NewTimer(lagTime)
	defer late.Stop()
	for {
		c.mu.RLock()
		at, changed, endWatch, heard, broken := c.table.Index, c.changed, c.endWatch, c.heard(), c.broken
		err := c.failed
		c.mu.RUnlock()
		if broken != nil || at >= index {
			return broken
		}
		if err == nil {
			err = fmt.Errorf("changes up to index %d have not arrived", index)
		}
		select {
		case <-changed:
		case <-late.C:
			if time.Since(heard) >= lagTime {
				if time.Since(began) > silenceTimeout {
					return err
				}
				endWatch()
			}
			late.Reset(2 * time.Since(began)) // a server that is busy sends all of it again
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", err, ctx.Err())
		case <-c.ctx.Done():
			return errClosed
		}
	}
}

// reachOwn waits until the table has every Commit of this process, unless the watch is broken.
func (c *core) reachOwn(ctx context.Context) error {
	c.mu.RLock()
	own, there := c.own, c.table.Index >= c.own || c.failed != nil
	c.mu.RUnlock()
	if there {
		return nil
	}
	waiting, cancel := context.WithTimeout(ctx, lagTime)
	defer cancel()
	_ = c.reach(waiting, own) // what there is serves as well
	return ctx.Err()
}

// read runs do with the table, which has every Commit that had returned, or with local at least all of this process.
func (s *Store) read(ctx context.Context, local bool, do func()) error {
	if err := s.use(ctx); err != nil {
		return err
	}
	if !local || s.FreshUntil().IsZero() { // the first read of a process sees what others have done before
		if err := s.sync(ctx); err != nil {
			return err
		}
	} else if err := s.reachOwn(ctx); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	do()
	return nil
}

// Get returns an entry.
func (s *Store) Get(ctx context.Context, key string) (e cluster.Entry, index uint64, err error) {
	err = s.read(ctx, false, func() { e, index = s.getLocked(key), s.table.Index })
	return e, index, err
}

func (c *core) getLocked(key string) cluster.Entry {
	if e := c.table.Live(key, alive); e != nil {
		return found(e, e.Value.bytes)
	}
	return cluster.Entry{Key: key}
}

func found(e *table.Entry[value], bytes []byte) cluster.Entry {
	entry := e.Found(bytes)
	entry.Damaged = e.Value.damaged
	return entry
}

// List returns entries.
func (s *Store) List(ctx context.Context, span cluster.Span) (page cluster.Page, err error) {
	err = s.read(ctx, span.Local, func() {
		all, more := s.table.List(span, alive)
		page = cluster.Page{More: more, Index: s.table.Index, Entries: make([]cluster.Entry, 0, len(all))}
		for _, e := range all {
			page.Entries = append(page.Entries, found(e, span.Cut(e.Value.bytes)))
		}
	})
	return page, err
}

// Watch waits for a change. It goes on waiting while etcd is away.
func (s *Store) Watch(ctx context.Context, prefix string, after uint64) (cluster.Changes, error) {
	if err := s.use(ctx); err != nil {
		return cluster.Changes{}, err
	}
	s.mu.RLock()
	late := s.failed == nil && s.table.Changed(prefix, after)
	s.mu.RUnlock()
	if late { // the caller gets all changes at once; one that goes on from the latest only waits
		looking, cancel := context.WithTimeout(ctx, lagTime)
		_ = s.sync(looking)
		cancel()
	}
	return s.table.Await(ctx, &s.mu, s.done, prefix, after, func() error {
		select {
		case <-s.done:
			return errClosed
		default:
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		return s.broken
	})
}
