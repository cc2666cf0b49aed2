package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/etcd/client"
	"taskapi/allocrunner/cluster/internal/table"
)

const (
	// attempts bounds how often a Commit is planned again because the entries have changed meanwhile.
	attempts    = 20
	largeCommit = 64 << 10
	// The time in which a change that may have been made is looked for.
	searchTime, searchPause = 3 * time.Second, 100 * time.Millisecond
)

// commit is a Commit under way.
type commit struct {
	*core
	txn       cluster.Txn
	id        string // which etcd reports with the change
	reloads   int    // of the table, before the first attempt
	uncertain error  // why nobody knows what became of an attempt
}

// Commit applies a transaction, within 10 seconds.
func (s *Store) Commit(ctx context.Context, txn cluster.Txn) (uint64, error) {
	if err := txn.Check(); err != nil {
		return 0, err
	}
	if err := s.use(ctx); err != nil {
		return 0, err
	}
	return s.commit(ctx, txn)
}

func (c *core) commit(ctx context.Context, txn cluster.Txn) (uint64, error) {
	whole, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	do := &commit{core: c, txn: txn, id: rand.Text()}
	c.mu.Lock()
	c.pending[do.id] = 0
	do.reloads = c.reloads
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.pending, do.id)
		c.mu.Unlock()
	}()
	index, err := do.run(whole)
	switch {
	case err == nil || do.uncertain == nil:
	case errors.Is(err, cluster.ErrUncertain):
		return 0, err
	case !cluster.IsConflict(err) || do.lostSight():
		return 0, fmt.Errorf("%w: %w", cluster.ErrUncertain, unavailable(do.uncertain))
	}
	if err != nil && ctx.Err() != nil && do.uncertain == nil {
		return 0, ctx.Err()
	}
	return index, err
}

// lostSight reports whether changes may have been made since the beginning that have not been seen one by one.
func (do *commit) lostSight() bool {
	do.mu.RLock()
	defer do.mu.RUnlock()
	return do.reloads != do.core.reloads
}

// seen returns the index with which the change has been made; 0 if no such change has been seen.
func (do *commit) seen() uint64 {
	do.mu.RLock()
	defer do.mu.RUnlock()
	return do.pending[do.id]
}

func (do *commit) run(ctx context.Context) (uint64, error) {
	current := false // the table has every Commit before this one
	if do.nearlyFull() {
		if err := do.sync(ctx); err != nil {
			return 0, err
		}
		current = true
	}
	for range attempts {
		request, index, err := do.plan()
		if err != nil || request == nil {
			if current {
				return index, err
			}
			if err := do.sync(ctx); err != nil {
				return 0, err
			}
			if index := do.seen(); index > 0 {
				return index, nil
			}
			current = true
			continue
		}
		answer, err := do.client.Txn(ctx, *request)
		switch {
		case err == nil && answer.Succeeded:
			do.mu.Lock()
			do.own = max(do.own, answer.Header.Revision)
			do.mu.Unlock()
			return answer.Header.Revision, nil
		case err == nil: // something has changed
		case client.IsUncertain(err):
			do.uncertain = err
			if !do.once() {
				return do.search(ctx)
			}
			do.sleep(ctx, searchPause)
		case client.IsNoLease(err): // the table does not know yet
			do.sleep(ctx, searchPause)
		case client.IsNoSpace(err):
			return 0, fmt.Errorf("%w: %w", cluster.ErrFull, err)
		case client.IsTooLarge(err):
			return 0, fmt.Errorf("%w: %w; start etcd with larger --max-request-bytes and --max-txn-ops",
				cluster.ErrInvalid, err)
		default:
			return 0, unavailable(err)
		}
		if err := do.sync(ctx); err != nil {
			return 0, err
		}
		if index := do.seen(); index > 0 {
			return index, nil
		}
		current = true
	}
	return 0, fmt.Errorf("%w: other writers change the same entries all the time", cluster.ErrUnavailable)
}

// nearlyFull reports whether commits of which the table does not know yet may have filled the store, or whether this
// one is large.
func (do *commit) nearlyFull() bool {
	size := 0
	for _, op := range do.txn.Then {
		size += len(op.Value)
	}
	do.mu.RLock()
	defer do.mu.RUnlock()
	return size > largeCommit || do.table.Bytes() > do.table.MaxBytes/4*3 || do.table.Len() > cluster.MaxEntries/4*3
}

// once reports whether the transaction can't be applied twice: a condition on a key that it changes no longer holds.
func (do *commit) once() bool {
	return slices.ContainsFunc(do.txn.If, func(cond cluster.Condition) bool {
		return slices.ContainsFunc(do.txn.Then, func(op cluster.Operation) bool {
			return op.Key == cond.Key && (!op.Delete || cond.ModifyIndex > 0)
		})
	})
}

// search waits for the change, which may have been made.
func (do *commit) search(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	for {
		_ = do.sync(ctx) // etcd may be back soon
		if index := do.seen(); index > 0 {
			return index, nil
		}
		if ctx.Err() != nil {
			return 0, fmt.Errorf("%w: %w", cluster.ErrUncertain, unavailable(do.uncertain))
		}
		do.sleep(ctx, searchPause)
	}
}

// plan returns the request for the transaction; none if the transaction changes nothing. It plans with the table, which
// may be old: an error or no request has to be checked with a current one.
func (do *commit) plan() (*client.Txn, uint64, error) {
	do.mu.RLock()
	defer do.mu.RUnlock()
	writes, conflict, err := do.table.Plan(do.txn, alive)
	if conflict != "" {
		err = &cluster.ConflictError{Entry: do.getLocked(conflict)}
	}
	if err != nil || len(writes) == 0 {
		return nil, do.table.Index, err
	}
	request := &client.Txn{Success: []client.Op{do.headOp(do.id)}}
	conditions := map[string]uint64{}
	for _, cond := range do.txn.If {
		conditions[cond.Key] = cond.ModifyIndex
	}
	leases, deleted := map[string]uint64{}, map[string]bool{}
	for _, op := range do.txn.Then {
		deleted[op.Key] = deleted[op.Key] || op.Delete
	}
	for _, w := range writes {
		if w.Delete {
			continue
		}
		key := do.key(entries, w.Key)
		var lease int64
		if w.Lease != "" {
			lease, leases[w.Lease] = do.owners[w.Lease].Lease, do.owners[w.Lease].create
		}
		born := uint64(bornNow)
		if !deleted[w.Key] {
			var before *uint64
			if born, before = do.bornLocked(w); before != nil {
				conditions[w.Key] = *before
			}
		}
		delete(deleted, w.Key)
		sealed, err := do.sealEntry(w.Key, w.Lease, born, w.Value)
		if err != nil {
			return nil, 0, fmt.Errorf("%w: %w", cluster.ErrUnavailable, err)
		}
		request.Success = append(request.Success, client.Op{Put: &client.Put{Key: key, Value: sealed, Lease: lease}})
	}
	for _, key := range slices.Sorted(maps.Keys(deleted)) { // also of those that the table does not have
		if deleted[key] {
			request.Success = append(request.Success, client.Op{Delete: &client.Delete{Key: do.key(entries, key)}})
		}
	}
	for _, key := range slices.Sorted(maps.Keys(conditions)) {
		request.Compare = append(request.Compare,
			client.Compare{Key: do.key(entries, key), Target: "MOD", Mod: conditions[key]})
	}
	for _, owner := range slices.Sorted(maps.Keys(leases)) {
		request.Compare = append(request.Compare,
			client.Compare{Key: do.key(owners, owner), Target: "CREATE", Create: leases[owner]})
	}
	return request, do.table.Index, nil
}

// headOp returns the operation that makes readers wait for a change.
func (c *core) headOp(id string) client.Op {
	return client.Op{Put: &client.Put{Key: c.key(head, ""), Value: []byte(id)}}
}

// bornLocked returns how a written entry notes the index with which it was made. etcd counts that from the first of
// versions without a deletion in between, and one transaction of etcd can't delete a key and write it. Where the note
// depends on the entry before, it returns that entry's index, too.
func (do *commit) bornLocked(w table.Write) (born uint64, index *uint64) {
	before := do.table.Get(w.Key)
	if before == nil || w.CreateIndex == before.Value.born {
		return 0, nil
	}
	return w.CreateIndex, &before.ModifyIndex
}
