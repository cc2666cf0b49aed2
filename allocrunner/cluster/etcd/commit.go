package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/etcd/client"
)

const (
	// attempts bounds how often a Commit is sent again because a lease has changed meanwhile.
	attempts = 20
	// The time in which a change that may have been made is looked for.
	searchTime, searchPause = 3 * time.Second, 100 * time.Millisecond
)

// commit is a Commit under way.
type commit struct {
	*core
	txn       cluster.Txn
	then      []cluster.Operation    // the last one of each key, by key
	sealed    [][]byte               // the value of each; nil for a deletion
	mark      int                    // which value shows that the change was made: nobody else seals the same; -1: none
	leases    map[string]ownerRecord // by owner: those that the operations name
	uncertain error                  // why an attempt may or may not have been carried out
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
	do := &commit{core: c, txn: txn, mark: -1, leases: map[string]ownerRecord{}}
	last := map[string]cluster.Operation{}
	for _, op := range txn.Then {
		last[op.Key] = op
	}
	for i, key := range slices.Sorted(maps.Keys(last)) {
		op, value := last[key], []byte(nil)
		if !op.Delete {
			var err error
			if value, err = c.sealEntry(key, op.Lease, op.Value); err != nil {
				return 0, fmt.Errorf("%w: %w", cluster.ErrUnavailable, err)
			}
			do.mark = i
		}
		do.then, do.sealed = append(do.then, op), append(do.sealed, value)
	}
	index, err := do.run(whole)
	switch {
	case err == nil && do.uncertain != nil: // it has been found
		do.note(client.TxnResponse{Header: client.Header{Revision: index}})
		return index, nil
	case err == nil:
		return index, nil
	case do.uncertain != nil:
		return 0, fmt.Errorf("%w: %w", cluster.ErrUncertain, unavailable(do.uncertain))
	case ctx.Err() != nil:
		return 0, c.failure(ctx, err)
	}
	return 0, err
}

func (do *commit) run(ctx context.Context) (uint64, error) {
	ended := false // a lease that this process holds has ended
	for range attempts {
		if err := do.findLeases(ctx, ended); err != nil {
			return 0, err
		}
		known, request := do.latest(), do.request()
		sending, cancel := context.WithTimeout(ctx, commitTimeout-searchTime)
		answer, err := do.client.Txn(sending, request)
		cancel()
		if err == nil {
			err = do.checkHeader(answer.Header, known)
		}
		switch {
		case err == nil && answer.Succeeded:
			do.note(answer)
			return answer.Header.Revision, nil
		case err == nil && len(answer.Responses) != len(request.Failure):
			return 0, unavailable(fmt.Errorf("etcd has %d answers to %d questions", len(answer.Responses), len(request.Failure)))
		case err == nil:
			if index, err := do.refused(answer.Responses); index > 0 || err != nil {
				return index, err
			}
		case client.IsUncertain(err):
			do.doubt(err)
			if !do.once() {
				return do.search(ctx)
			}
			do.pause(ctx)
		case client.IsNoLease(err): // it has just ended
			ended = true
			clear(do.leases)
			do.pause(ctx)
		case client.IsNoSpace(err): // of a change that has filled etcd, and that etcd may have made all the same
			if index, unknown := do.made(ctx); index > 0 || unknown != nil {
				do.doubt(err)
				return index, unknown
			}
			return 0, fmt.Errorf("%w: %w; compact and defragment etcd, and let it do so by --auto-compaction-retention=1",
				cluster.ErrFull, err)
		case client.IsTooLarge(err):
			return 0, fmt.Errorf("%w: %w; start etcd with larger --max-request-bytes and --max-txn-ops",
				cluster.ErrInvalid, err)
		default:
			return 0, unavailable(err)
		}
		if ctx.Err() != nil {
			return 0, unavailable(errors.Join(do.uncertain, ctx.Err()))
		}
	}
	return 0, fmt.Errorf("%w: other holders change the same leases all the time", cluster.ErrUnavailable)
}

// request returns the request for the transaction. When a condition does not hold, etcd answers with the entries of the
// conditions, then with the one that is marked, and then with the leases.
func (do *commit) request() client.Txn {
	var request client.Txn
	look := func(key []byte) {
		request.Failure = append(request.Failure, client.Op{Range: &client.RangeRequest{Key: key}})
	}
	for _, cond := range do.txn.If {
		key := do.key(entries, cond.Key)
		request.Compare = append(request.Compare, client.Compare{Key: key, Target: "MOD", Mod: cond.ModifyIndex})
		look(key)
	}
	for i, op := range do.then {
		change := client.Op{Delete: &client.Delete{Key: do.key(entries, op.Key)}}
		if !op.Delete {
			put := &client.Put{Key: do.key(entries, op.Key), Value: do.sealed[i], Lease: do.leases[op.Lease].Lease}
			change = client.Op{Put: put}
		}
		request.Success = append(request.Success, change)
	}
	if do.mark >= 0 {
		look(do.key(entries, do.then[do.mark].Key))
	}
	for _, owner := range slices.Sorted(maps.Keys(do.leases)) {
		key := do.key(owners, owner)
		request.Compare = append(request.Compare,
			client.Compare{Key: key, Target: "CREATE", Create: do.leases[owner].create})
		look(key)
	}
	return request
}

// findLeases finds the leases that the operations name. With ask, it asks etcd also for those that this process holds.
func (do *commit) findLeases(ctx context.Context, ask bool) error {
	for _, op := range do.then {
		if _, known := do.leases[op.Lease]; known || op.Lease == "" {
			continue
		}
		do.mu.RLock()
		l := do.core.leases[op.Lease]
		var record ownerRecord
		if l != nil {
			record = l.record
		}
		do.mu.RUnlock()
		if ask || record.create == 0 {
			found, err := do.find(ctx, client.RangeRequest{Key: do.key(owners, op.Lease)})
			if err != nil {
				return unavailable(err)
			}
			if record, err = do.record(op.Lease, found.KVs); err != nil {
				return err
			}
		}
		do.leases[op.Lease] = record
	}
	return nil
}

// record returns the record of an owner's lease.
func (do *commit) record(owner string, kvs []client.KV) (r ownerRecord, err error) {
	if len(kvs) > 0 { // a record that is damaged can be used by nobody
		r, err = do.openOwner(owner, kvs[0])
	}
	if err != nil || len(kvs) == 0 {
		return r, fmt.Errorf("%w: nobody holds that of %s", cluster.ErrLeaseEnded, owner)
	}
	return r, nil
}

// refused returns why etcd has refused the request: an error, or the index of the change, which was made before. It
// returns neither when a lease was another one.
func (do *commit) refused(answers []client.OpResponse) (uint64, error) {
	if do.mark >= 0 {
		kvs := answers[len(do.txn.If)].Range.KVs
		if len(kvs) > 0 && bytes.Equal(kvs[0].Value, do.sealed[do.mark]) {
			return kvs[0].ModRevision, nil
		}
	}
	for i, cond := range do.txn.If {
		if e := do.entry(cond.Key, answers[i].Range.KVs); e.ModifyIndex != cond.ModifyIndex {
			return 0, &cluster.ConflictError{Entry: e}
		}
	}
	of := slices.Sorted(maps.Keys(do.leases))
	for i, answer := range answers[len(answers)-len(of):] {
		record, err := do.record(of[i], answer.Range.KVs)
		if err != nil {
			do.disown(of[i])
			return 0, err
		}
		do.leases[of[i]] = record
	}
	return 0, nil
}

// disown makes this process begin another lease of an owner, if it holds the lease whose key is gone.
func (do *commit) disown(owner string) {
	do.mu.Lock()
	defer do.mu.Unlock()
	if l := do.core.leases[owner]; l != nil && l.record.create == do.leases[owner].create {
		l.gone = true
	}
}

// note records a change that was made, for local reads and for leases that have to begin again.
func (do *commit) note(answer client.TxnResponse) {
	do.mu.Lock()
	defer do.mu.Unlock()
	for i, op := range do.then {
		for owner, l := range do.core.leases {
			if owner != op.Lease {
				delete(l.kept, op.Key)
			}
		}
		if op.Delete && (i >= len(answer.Responses) || answer.Responses[i].Delete.Deleted == 0) {
			continue // nothing was there, or nobody knows
		}
		for _, v := range do.views {
			if v.covers(op.Key) {
				v.own = max(v.own, answer.Header.Revision)
			}
		}
		do.keepLocked(op)
	}
}

// keepLocked keeps an entry for when its lease has to begin again.
func (do *commit) keepLocked(op cluster.Operation) {
	if l := do.core.leases[op.Lease]; l != nil {
		l.kept[op.Key] = op.Value
	}
}

// doubt records a change that may have been made. When a lease ends, etcd says which of its entries were there.
func (do *commit) doubt(err error) {
	do.uncertain = err
	do.mu.Lock()
	defer do.mu.Unlock()
	for _, op := range do.then {
		do.keepLocked(op)
	}
}

// once reports whether the transaction can't be applied twice: a condition on a key that it changes no longer holds.
func (do *commit) once() bool {
	return slices.ContainsFunc(do.txn.If, func(cond cluster.Condition) bool {
		return slices.ContainsFunc(do.then, func(op cluster.Operation) bool {
			return op.Key == cond.Key && (!op.Delete || cond.ModifyIndex > 0)
		})
	})
}

// search waits for the change, which may have been made.
func (do *commit) search(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	for do.mark >= 0 && ctx.Err() == nil {
		if index, err := do.made(ctx); err == nil && index > 0 {
			return index, nil
		}
		do.pause(ctx)
	}
	return 0, do.uncertain
}

// made returns the index of the change if etcd has it now, and else 0.
func (do *commit) made(ctx context.Context) (uint64, error) {
	if do.mark < 0 {
		return 0, nil
	}
	found, err := do.find(ctx, client.RangeRequest{Key: do.key(entries, do.then[do.mark].Key)})
	if err != nil || len(found.KVs) == 0 || !bytes.Equal(found.KVs[0].Value, do.sealed[do.mark]) {
		return 0, err
	}
	return found.KVs[0].ModRevision, nil
}
