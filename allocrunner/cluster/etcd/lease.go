package etcd

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/etcd/client"
	"taskapi/internal/wake"
)

// An owner's lease is one lease of etcd, which all processes that hold it renew. The owner's key, which is under that
// lease, lists them. A process that dies stays in the list, so the lease then ends LeaseTTL after the last renewal.

const (
	// mostAgain is how many entries one transaction writes again.
	mostAgain = 16
	// endTime bounds how long etcd is asked which entries were there when a lease ended.
	endTime = 2 * time.Second
	// left is in the list of holders in place of a process that has left the lease to the next one.
	left = "left"
)

// lease is this process's part in the lease of an owner.
type lease struct {
	*core
	owner   string
	id      string // of this process among the holders
	ctx     context.Context
	cancel  context.CancelFunc
	renewal sync.WaitGroup
	turn    chan struct{} // has an element while the lease is renewed
	missing []string      // the keys of kept that have to be written again; for the goroutine that has the turn
	renewed time.Time     // the latest time at which the lease was renewed; for the goroutine that has the turn

	// core.mu guards the fields below.
	users  int
	record ownerRecord              // the latest that was read or written; zero before the first renewal
	leaves bool                     // the entries stay for another process
	gone   bool                     // somebody has deleted the owner's key of this record
	fence  func() cluster.Condition // holds while the process may write; nil for always
	kept   map[string][]byte        // the owner's entries, to write them again: found at the beginning, or written since
}

// hold is one Hold of a lease.
type hold struct {
	*lease
	close func()
}

func (h hold) Owner() string { return h.owner }

// Files returns none: the keeper can't hold the lease, which gives taskapi LeaseTTL to come back.
func (h hold) Files() []*os.File { return nil }

// Leave lets the entries stay when this process ends its part in the lease.
func (h hold) Leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leaves = true
}

func (h hold) Close() error {
	h.close()
	return nil
}

// Hold joins a lease or begins one.
func (s *Store) Hold(ctx context.Context, owner string) (cluster.Lease, error) {
	return s.HoldFenced(ctx, owner, nil)
}

// HoldFenced is Hold for a process that writes the owner's entries again only while a condition holds.
func (s *Store) HoldFenced(
	ctx context.Context, owner string, fence func() cluster.Condition,
) (cluster.Lease, error) {
	if err := cluster.CheckName("lease's owner", owner); err != nil {
		return nil, err
	}
	if err := s.use(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	l := s.leases[owner]
	if l == nil {
		l = &lease{core: s.core, owner: owner, id: rand.Text(), turn: make(chan struct{}, 1), kept: map[string][]byte{}}
		l.ctx, l.cancel = context.WithCancel(s.ctx)
		s.leases[owner] = l
		l.renewal.Go(l.run)
	}
	l.users++
	s.users++
	if fence != nil {
		l.fence = fence
	}
	s.mu.Unlock()
	h := hold{l, sync.OnceFunc(l.release)}
	// A caller that gives up does not end the attempt while there are others: etcd may be too busy to answer in time, and
	// would have to begin again.
	renewed := make(chan error, 1)
	l.renewal.Go(func() {
		whole, cancel := context.WithTimeout(l.ctx, commitTimeout)
		defer cancel()
		renewed <- l.renew(whole)
	})
	var err error
	select {
	case err = <-renewed:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		h.close()
		return nil, s.failure(ctx, err)
	}
	return h, nil
}

// release ends one Hold. The last one of this process ends its part in the lease.
func (l *lease) release() {
	c := l.core
	defer c.leave()
	c.mu.Lock()
	l.users--
	last := l.users == 0
	if last {
		delete(c.leases, l.owner)
	}
	c.mu.Unlock()
	if last {
		l.cancel()
		l.renewal.Wait()
		l.end()
	}
}

// run renews the lease until it is released.
func (l *lease) run() {
	for pause := renewInterval; ; {
		if wake.Sleep(l.ctx, pause) != nil {
			return
		}
		pause = renewInterval
		if l.renew(l.ctx) != nil {
			pause = lastPause/2 + mathrand.N(lastPause)
		}
	}
}

// renew renews the lease, or begins it. If it has ended, another one gets its entries.
func (l *lease) renew(ctx context.Context) (err error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	l.mu.RLock()
	record, gone := l.record, l.gone
	l.mu.RUnlock()
	began := time.Now()
	if began.Sub(l.renewed) < lastPause && !gone && len(l.missing) == 0 {
		return nil // another Hold has just done it
	}
	defer func() {
		if err == nil {
			l.renewed = began
		}
	}()
	if gone { // the lease ends for all of its holders, who then begin another one together
		if err := l.client.Revoke(ctx, record.Lease); err != nil {
			return err
		}
	}
	if record.Lease != 0 {
		ttl, err := l.client.KeepAlive(ctx, record.Lease)
		if err != nil || ttl > 0 && len(l.missing) == 0 {
			return err
		}
		if ttl == 0 {
			if len(l.missing) == 0 { // else nobody knows which of the entries others have deleted
				l.forget(ctx, record)
			}
			l.mu.RLock()
			l.missing = slices.Sorted(maps.Keys(l.kept))
			l.mu.RUnlock()
			record = ownerRecord{}
		}
	}
	if record.Lease == 0 {
		if err := l.join(ctx); err != nil {
			return err
		}
	}
	return l.restore(ctx)
}

// join makes this process a holder of the owner's lease.
func (l *lease) join(ctx context.Context) error {
	var record ownerRecord // of the lease that there is
	for range attempts {
		next, begins := record, record.Lease == 0
		var err error
		if begins {
			next = ownerRecord{Lease: newLeaseID()}
			if err = l.client.Grant(ctx, next.Lease, LeaseTTL); client.IsNoSpace(err) {
				l.prolong(ctx)
			}
		} else {
			var ttl time.Duration
			if ttl, err = l.client.KeepAlive(ctx, next.Lease); err == nil && ttl == 0 {
				l.pause(ctx) // it has just ended
				record = ownerRecord{}
				continue
			}
		}
		if err != nil {
			return err
		}
		next.Holders = append(without(next.Holders, left), l.id)
		done, now, err := l.write(ctx, next)
		if done && !begins {
			err = l.adopt(ctx, now)
		}
		if done && err == nil {
			l.mu.Lock()
			l.record, l.gone = now, false
			l.mu.Unlock()
			return nil
		}
		if begins {
			_ = l.client.Revoke(ctx, next.Lease) // else it ends by itself
		}
		if err != nil && !client.IsNoLease(err) {
			return err
		}
		record = now
	}
	return errors.New("others change the lease all the time")
}

// prolong renews the lease of an earlier process, which this process can't join while etcd is full.
func (l *lease) prolong(ctx context.Context) {
	found, err := l.find(ctx, client.RangeRequest{Key: l.key(owners, l.owner)})
	if err != nil || len(found.KVs) == 0 {
		return
	}
	if record, err := l.openOwner(l.owner, found.KVs[0]); err == nil {
		_, _ = l.client.KeepAlive(ctx, record.Lease) // the caller tries again
	}
}

// adopt keeps the entries that others have written with the lease, such as an earlier process.
func (l *lease) adopt(ctx context.Context, record ownerRecord) error {
	keys, err := l.client.LeaseKeys(ctx, record.Lease)
	for _, key := range keys {
		name, ok := strings.CutPrefix(string(key), l.config.Prefix+entries)
		if !ok {
			continue
		}
		found, err := l.find(ctx, client.RangeRequest{Key: key})
		if err != nil {
			return err
		}
		if e := l.entry(name, found.KVs); e.Lease == l.owner {
			l.mu.Lock()
			l.kept[name] = e.Value
			l.mu.Unlock()
		}
	}
	return err
}

// Leased returns the keys of an owner's entries, if this process holds the owner's lease.
func (c *core) Leased(owner string) (keys []string, held bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if l := c.leases[owner]; l != nil && l.record.Lease != 0 {
		return slices.Collect(maps.Keys(l.kept)), true
	}
	return nil, false
}

// write writes the record of the owner's lease if nobody has changed the record since it was read. It returns the
// record that etcd has afterwards. A record without holders is deleted: nobody joins a lease that is about to end.
func (l *lease) write(ctx context.Context, r ownerRecord) (done bool, now ownerRecord, err error) {
	key := l.key(owners, l.owner)
	sealed, err := l.sealOwner(l.owner, r)
	if err != nil {
		return false, now, err
	}
	op := client.Op{Put: &client.Put{Key: key, Value: sealed, Lease: r.Lease}}
	if len(r.Holders) == 0 {
		op = client.Op{Delete: &client.Delete{Key: key}}
	}
	answer, err := l.client.Txn(ctx, client.Txn{
		Compare: []client.Compare{{Key: key, Target: "MOD", Mod: r.modify}},
		Success: []client.Op{op},
		Failure: []client.Op{{Range: &client.RangeRequest{Key: key}}},
	})
	switch {
	case err != nil:
		return false, now, err
	case answer.Succeeded:
		r.modify = answer.Header.Revision
		if r.create == 0 {
			r.create = r.modify
		}
		return true, r, nil
	case len(answer.Responses) > 0 && len(answer.Responses[0].Range.KVs) > 0:
		now, err = l.openOwner(l.owner, answer.Responses[0].Range.KVs[0])
	}
	return false, now, err
}

// without returns the holders that are not id.
func without(holders []string, id string) []string {
	return slices.DeleteFunc(slices.Clone(holders), func(holder string) bool { return holder == id })
}

func newLeaseID() int64 {
	var b [8]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return int64(binary.BigEndian.Uint64(b[:])>>1) | 1
}

// restore writes the entries again that ended with a lease. Because many entries may take long, it renews the new lease
// meanwhile.
func (l *lease) restore(ctx context.Context) error {
	for renewed := time.Now(); len(l.missing) > 0; {
		if time.Since(renewed) > renewInterval {
			renewed = time.Now()
			if ttl, err := l.client.KeepAlive(ctx, l.record.Lease); err != nil || ttl == 0 {
				return errors.Join(err, cluster.ErrLeaseEnded)
			}
		}
		n := min(mostAgain, len(l.missing))
		if err := l.writeAgain(ctx, l.missing[:n]); err != nil {
			return err
		}
		l.missing = l.missing[n:]
	}
	return nil
}

// writeAgain writes some entries again, unless somebody else was first.
func (l *lease) writeAgain(ctx context.Context, keys []string) error {
	kept := map[string][]byte{}
	l.mu.RLock()
	fence := l.fence
	for _, key := range keys {
		if value, ok := l.kept[key]; ok {
			kept[key] = value
		}
	}
	l.mu.RUnlock()
	for len(kept) > 0 {
		var txn cluster.Txn
		for key, value := range kept {
			txn.If = append(txn.If, cluster.Condition{Key: key})
			txn.Then = append(txn.Then, cluster.Operation{Key: key, Value: value, Lease: l.owner})
		}
		if fence != nil {
			txn.If = append(txn.If, fence())
		}
		_, err := l.commit(ctx, txn)
		conflict, ok := errors.AsType[*cluster.ConflictError](err)
		if err != nil && !ok {
			return fmt.Errorf("write %q again: %w", keys, err)
		}
		if err == nil || !slices.Contains(keys, conflict.Entry.Key) { // then another machine has the claim
			break
		}
		delete(kept, conflict.Entry.Key)
	}
	return nil
}

// forget removes from kept the entries that were no longer there when the lease ended, because others had deleted them.
// If etcd no longer has that revision, all entries stay.
func (l *lease) forget(ctx context.Context, ended ownerRecord) {
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	l.mu.RLock()
	keys := slices.Collect(maps.Keys(l.kept))
	l.mu.RUnlock()
	if len(keys) == 0 {
		return
	}
	at, err := l.endOf(ctx, ended)
	if err != nil {
		return
	}
	for _, key := range keys {
		found, err := l.find(ctx, client.RangeRequest{Key: l.key(entries, key), Revision: at - 1, KeysOnly: true})
		if err == nil && len(found.KVs) == 0 {
			l.mu.Lock()
			delete(l.kept, key)
			l.mu.Unlock()
		}
	}
}

// endOf returns the revision with which a lease has ended.
func (l *lease) endOf(ctx context.Context, ended ownerRecord) (uint64, error) {
	key := l.key(owners, l.owner)
	w, err := l.client.Watch(ctx, string(key), ended.modify+1)
	if err != nil {
		return 0, err
	}
	defer w.Close(false)
	for {
		r, err := w.Next()
		if err != nil || r.Canceled {
			return 0, errors.Join(err, errors.New("etcd does not know any more"))
		}
		for _, e := range r.Events {
			if string(e.KV.Key) == string(key) && e.Deleted() {
				return e.KV.ModRevision, nil
			}
		}
	}
}

// end ends this process's part. The last one ends the lease, with its entries, or leaves them to another process. If
// etcd is away, the lease ends by itself.
func (l *lease) end() {
	ctx, cancel := context.WithTimeout(l.core.ctx, lastPause)
	defer cancel()
	for record := l.record; record.Lease != 0; {
		if record.Holders = without(record.Holders, l.id); l.leaves && len(record.Holders) == 0 {
			record.Holders = []string{left}
		}
		done, now, err := l.write(ctx, record)
		if done && len(record.Holders) == 0 {
			_ = l.client.Revoke(ctx, record.Lease)
		}
		if done || err != nil || !slices.Contains(now.Holders, l.id) {
			return
		}
		record = now
	}
}
