package etcd

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/etcd/client"
	"taskapi/allocrunner/cluster/internal/table"
)

// An owner's lease is one lease of etcd, which all of its holders renew. The owner's key, which is under that lease,
// lists them. A holder that dies stays in the list, so that the lease then ends LeaseTTL after the last renewal.

// lease is one holder's part in the lease of an owner.
type lease struct {
	core   *core
	owner  string
	holder string
	ctx    context.Context
	stop   func() // closes the lease; the second call does nothing

	id    int64                    // of etcd's lease; Hold and then renew have it
	fence func() cluster.Condition // holds while the holder may write; nil for always

	// kept are the values of the owner's entries, to write them again with another lease. core.mu guards it.
	kept map[string][]byte
}

func (l *lease) Owner() string { return l.owner }

// Files returns none: the keeper can't hold the lease, which gives taskapi LeaseTTL to come back.
func (l *lease) Files() []*os.File { return nil }

func (l *lease) Close() error {
	l.stop()
	return nil
}

// Hold joins a lease or begins one.
func (s *Store) Hold(ctx context.Context, owner string) (cluster.Lease, error) {
	return s.HoldFenced(ctx, owner, nil)
}

// HoldFenced is Hold for a holder that writes its entries again only while a condition holds.
func (s *Store) HoldFenced(
	ctx context.Context, owner string, fence func() cluster.Condition,
) (cluster.Lease, error) {
	if err := cluster.CheckName("lease's owner", owner); err != nil {
		return nil, err
	}
	if err := s.use(ctx); err != nil {
		return nil, err
	}
	l := &lease{core: s.core, owner: owner, holder: rand.Text(), fence: fence, kept: map[string][]byte{}}
	whole, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	if err := l.join(whole); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, unavailable(err)
	}
	renewing, cancel := context.WithCancel(s.ctx)
	l.ctx = renewing
	var ended sync.WaitGroup
	l.stop = sync.OnceFunc(func() {
		cancel()
		ended.Wait()
		l.end()
	})
	s.mu.Lock()
	s.users++
	s.holds[l] = struct{}{}
	l.adoptLocked()
	s.mu.Unlock()
	ended.Go(l.renew)
	return l, nil
}

// join makes this holder one of the owner's lease.
func (l *lease) join(ctx context.Context) error {
	for range attempts {
		if err := l.core.sync(ctx); err != nil {
			return err
		}
		l.core.mu.RLock()
		record, there := l.core.owners[l.owner]
		l.core.mu.RUnlock()
		compare := client.Compare{Key: l.core.key(owners, l.owner), Target: "MOD", Mod: record.modify}
		var err error
		if there {
			var ttl time.Duration
			if ttl, err = l.core.client.KeepAlive(ctx, record.Lease); err == nil && ttl == 0 {
				l.core.sleep(ctx, searchPause) // it has just ended
				continue
			}
		} else {
			record = ownerRecord{Lease: newLeaseID()}
			err = l.core.client.Grant(ctx, record.Lease, LeaseTTL)
		}
		if err != nil {
			return err
		}
		record.Holders = append(slices.Clone(record.Holders), l.holder)
		done, err := l.write(ctx, record, compare)
		if done {
			l.id = record.Lease
			return nil
		}
		if !there {
			_ = l.core.client.Revoke(ctx, record.Lease) // else it ends by itself
		}
		if err != nil && !client.IsNoLease(err) {
			return err
		}
	}
	return errors.New("others change the lease all the time")
}

// write writes the record of the owner's lease if the condition holds. A record without holders is deleted: nobody
// joins a lease that is about to end.
func (l *lease) write(ctx context.Context, record ownerRecord, compare client.Compare) (bool, error) {
	sealed, err := l.core.sealOwner(l.owner, record)
	if err != nil {
		return false, err
	}
	op := client.Op{Put: &client.Put{Key: compare.Key, Value: sealed, Lease: record.Lease}}
	if len(record.Holders) == 0 {
		op = client.Op{Delete: &client.Delete{Key: compare.Key}}
	}
	answer, err := l.core.client.Txn(ctx, client.Txn{Compare: []client.Compare{compare},
		Success: []client.Op{op, l.core.headOp(rand.Text())}})
	return err == nil && answer.Succeeded, err
}

func newLeaseID() int64 {
	var b [8]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return int64(binary.BigEndian.Uint64(b[:])>>1) | 1
}

// renew renews the lease until it is closed. If the lease has ended, it begins another one.
func (l *lease) renew() {
	pause, whole := renewInterval, true // whole says that no entry is to be written again
	for {
		l.core.sleep(l.ctx, pause)
		if l.ctx.Err() != nil {
			return
		}
		ttl, err := l.core.client.KeepAlive(l.ctx, l.id)
		switch {
		case err != nil:
			pause = lastPause/2 + mathrand.N(lastPause)
		case ttl > 0 && whole:
			pause = renewInterval
		default:
			pause = renewInterval
			if whole = l.again(ttl > 0) == nil; !whole {
				pause = lastPause/2 + mathrand.N(lastPause)
			}
		}
	}
}

// again writes the entries again that ended with a lease, with another one. joined says that there is the other one.
func (l *lease) again(joined bool) error {
	if !joined {
		if err := l.join(l.ctx); err != nil {
			return err
		}
	}
	l.core.mu.RLock()
	var missing []cluster.Operation
	for key, value := range l.kept {
		if l.core.table.Get(key) == nil {
			missing = append(missing, cluster.Operation{Key: key, Value: value, Lease: l.owner})
		}
	}
	l.core.mu.RUnlock()
	for _, op := range missing {
		txn := cluster.Txn{If: []cluster.Condition{{Key: op.Key}}, Then: []cluster.Operation{op}}
		if l.fence != nil {
			txn.If = append(txn.If, l.fence())
		}
		_, err := l.core.commit(l.ctx, txn)
		if err != nil && !cluster.IsConflict(err) {
			return fmt.Errorf("write %q again: %w", op.Key, err)
		}
	}
	return nil
}

// noteLocked keeps the owner's entries as one revision changes them. The end of the lease deletes the owner's key, too,
// and takes nothing away. core.mu is held.
func (l *lease) noteLocked(changes []*table.Change[value]) {
	ended := slices.ContainsFunc(changes, func(c *table.Change[value]) bool {
		return c.Delete && c.Key == table.LeaseKey(l.owner)
	})
	for _, change := range changes {
		switch {
		case !change.Delete && change.Lease == l.owner:
			l.kept[change.Key] = change.Value.bytes
		case change.Delete && ended:
		default:
			delete(l.kept, change.Key)
		}
	}
}

// adoptLocked keeps the owner's entries of the table. core.mu is held.
func (l *lease) adoptLocked() {
	if l.core.table.Lease(l.owner) > 0 {
		clear(l.kept)
	}
	for _, e := range l.core.table.Entries() {
		if e.Lease == l.owner {
			l.kept[e.Key] = e.Value.bytes
		}
	}
}

// end ends this holder's part. The last one ends the lease, with its entries. If etcd is away, the lease ends by
// itself.
func (l *lease) end() {
	c := l.core
	c.mu.Lock()
	delete(c.holds, l)
	c.mu.Unlock()
	defer c.leave()
	ctx, cancel := context.WithTimeout(c.ctx, lastPause)
	defer cancel()
	for range attempts {
		if c.sync(ctx) != nil {
			return
		}
		c.mu.RLock()
		record, there := c.owners[l.owner]
		c.mu.RUnlock()
		at := slices.Index(record.Holders, l.holder)
		if !there || at < 0 {
			return
		}
		record.Holders = slices.Delete(slices.Clone(record.Holders), at, at+1)
		compare := client.Compare{Key: c.key(owners, l.owner), Target: "MOD", Mod: record.modify}
		done, err := l.write(ctx, record, compare)
		if err != nil {
			return
		}
		if done && len(record.Holders) == 0 {
			l.revoke(ctx, record.Lease)
		}
		if done {
			return
		}
	}
}

// revoke ends etcd's lease, and makes readers wait for that.
func (l *lease) revoke(ctx context.Context, id int64) {
	if l.core.client.Revoke(ctx, id) != nil {
		return
	}
	_, _ = l.core.client.Txn(ctx, client.Txn{Success: []client.Op{l.core.headOp(rand.Text())}})
}
