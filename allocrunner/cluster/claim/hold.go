package claim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/internal/boottime"
	"taskapi/internal/wake"
)

// Claim is a claim that this process holds, or held.
type Claim struct {
	cfg  Config
	was  uint64            // the index of a claim that another machine may have, too
	kept func(Saved) error // keeps a claim that is taken again; nil when no other machine can have the same claim

	mu      sync.Mutex // guards the fields below
	index   uint64     // of the write by which this machine became the holder; 0 while another may have the same claim
	end     time.Duration
	over    bool // lost or released
	changed chan struct{}
	lost    chan struct{} // closed when another machine has taken the claim
}

func newClaim(cfg Config, index uint64) *Claim {
	return &Claim{cfg: cfg, index: index, changed: make(chan struct{}), lost: make(chan struct{})}
}

// Saved is a claim as its holder keeps it, to go on with it in another process.
type Saved struct {
	Name   Name
	Holder Holder
	Index  uint64
	Place  string // where it is kept, unlike any other place of any machine; its keeper sets it
}

// Saved returns what another process of this machine needs to hold the claim.
func (c *Claim) Saved() Saved {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Saved{Name: c.cfg.Name, Holder: c.cfg.Holder, Index: c.index}
}

// Resume returns a claim that an earlier process has held. Nothing may run before it is renewed.
func Resume(store cluster.Store, s Saved) *Claim {
	return newClaim(Config{Store: store, Name: s.Name, Holder: s.Holder}, s.Index)
}

// Again returns a claim that was kept in another place, such as in a directory that was copied, or before a reboot:
// another machine may hold the same claim. Run takes it again when nobody has renewed it for TTL, and calls kept before
// it lasts. Until then, a Fenced store writes nothing, and Release does nothing.
func Again(store cluster.Store, s Saved, kept func(Saved) error) *Claim {
	c := newClaim(Config{Store: store, Name: s.Name, Holder: s.Holder}, 0)
	c.was, c.kept = s.Index, kept
	return c
}

func (c *Claim) now() time.Duration {
	if c.cfg.Now != nil {
		return c.cfg.Now()
	}
	return boottime.Now()
}

// Until returns until when the holder may run the allocation, as time since the start of the machine, and what is
// closed as soon as that changes: zero before the first renewal of a claim that was resumed, and a negative time for a
// claim that is lost.
func (c *Claim) Until() (end time.Duration, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end, c.changed
}

// Lost is closed when another machine has taken the claim.
func (c *Claim) Lost() <-chan struct{} { return c.lost }

// extend prolongs the claim by a renewal that was sent at a time.
func (c *Claim) extend(sent time.Duration) {
	c.set(func() { c.end = max(c.end, sent+Held) })
}

func (c *Claim) set(how func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return
	}
	how()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *Claim) lose() {
	c.set(func() {
		c.end, c.over = -1, true
		close(c.lost)
	})
}

// Run renews the claim until ctx ends or the claim is lost. It logs once that the store is full, and that the claim has
// ended without a renewal.
func (c *Claim) Run(ctx context.Context, logger *slog.Logger) {
	if c.kept != nil && !c.again(ctx) {
		return
	}
	late, wasFull := false, false
	for {
		pause := renewEvery
		full, err := c.renew(ctx)
		if full && !wasFull {
			logger.Warn("the store is full: no other machine can take the allocation over until the store has room again")
		}
		wasFull = full
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrLost):
			c.lose()
			return
		case err != nil:
			pause = retryPause
			if end, _ := c.Until(); !late && end > 0 && c.now() >= end {
				late = true
				logger.Warn("the tasks are killed: the claim on the allocation could not be renewed in time, and another "+
					"machine may take it; they start again when it is renewed", "error", err)
			}
		default:
			late = false
		}
		if wake.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// again takes the claim again, and loses it if another machine renews it. It reports whether the claim is taken.
func (c *Claim) again(ctx context.Context) bool {
	var first seen
	for ctx.Err() == nil {
		_, now, index, err := look(ctx, c.cfg.Store, c.cfg.Name)
		if err != nil {
			_ = wake.Sleep(ctx, retryPause) // the loop sees that ctx has ended
			continue
		}
		if first.renewal == 0 {
			first = now
		}
		if now.holder != c.was || now.renewal != first.renewal {
			c.lose()
			return false
		}
		if now.renewal == 0 {
			if ask(ctx, c.cfg, c.was) != nil {
				_ = wake.Sleep(ctx, retryPause)
			}
			continue
		}
		if wait := TTL - time.Since(first.since); wait > 0 {
			waiting, cancel := context.WithTimeout(ctx, wait)
			if _, err := c.cfg.Store.Watch(waiting, c.cfg.Name.prefix(), index); err != nil && waiting.Err() == nil {
				_ = wake.Sleep(ctx, retryPause)
			}
			cancel()
			continue
		}
		taken, err := take(ctx, c.cfg, first)
		if err == nil {
			err = c.kept(taken.Saved())
		}
		if err != nil { // if the write was made all the same, the claim is another now
			_ = wake.Sleep(ctx, retryPause)
			continue
		}
		c.set(func() { c.index, c.end = taken.index, taken.end })
		return true
	}
	return false
}

// renew renews the claim, and reports whether the store is full. A renewal whose fate is unknown does not prolong the
// claim, and is made again.
func (c *Claim) renew(ctx context.Context) (full bool, err error) {
	sent := c.now()
	_, err = c.commit(ctx, c.condition(), cluster.Operation{Key: c.cfg.Name.renewal(), Value: []byte{}})
	if full = errors.Is(err, cluster.ErrFull); full {
		_, err = c.commit(ctx, c.condition(), cluster.Operation{Key: c.cfg.Name.renewal(), Delete: true})
	}
	if err == nil {
		c.extend(sent)
	}
	return full, err
}

// commit writes if a condition of the holder holds, and returns the index of that. Errors: ErrLost.
func (c *Claim) commit(ctx context.Context, is cluster.Condition, then ...cluster.Operation) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	index, err := c.cfg.Store.Commit(ctx, cluster.Txn{If: []cluster.Condition{is}, Then: then})
	if cluster.IsConflict(err) {
		return 0, ErrLost
	}
	return index, err
}

// condition holds while this machine is the holder.
func (c *Claim) condition() cluster.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cluster.Condition{Key: c.cfg.Name.holder(), ModifyIndex: c.index}
}

// Release gives the claim up. Nothing of the allocation runs on this machine, and nothing will: complete says that the
// allocation has run to its end, so that machines which stand by don't run it again. Otherwise one of them takes the
// claim at once, or after TTL when the store can't be written now. A claim that is lost is no error.
func (c *Claim) Release(ctx context.Context, complete bool) error {
	c.mu.Lock()
	over, index := c.over, c.index
	c.end, c.over = -1, true
	if !over {
		close(c.changed)
		c.changed = make(chan struct{})
	}
	c.mu.Unlock()
	if over || index == 0 {
		return nil
	}
	holder, name := c.cfg.Holder, c.cfg.Name
	holder.Released, holder.Complete, holder.TTL = true, complete, TTL
	value, err := json.Marshal(holder)
	if err == nil {
		index, err = c.commit(ctx, c.condition(), cluster.Operation{Key: name.holder(), Value: value},
			cluster.Operation{Key: name.renewal(), Delete: true})
	}
	if err == nil { // else the claim is taken after TTL
		_, err = c.commit(ctx, cluster.Condition{Key: name.holder(), ModifyIndex: index},
			cluster.Operation{Key: name.renewal(), Value: fmt.Append(nil, index)})
	}
	if err != nil && !errors.Is(err, ErrLost) {
		return fmt.Errorf("release the claim on %s: %w", c.cfg.Name.Alloc, err)
	}
	return nil
}

// Fenced returns a store that writes nothing once another machine has taken the claim. Such a write fails with an error
// that is ErrLost and cluster.ErrUnavailable.
func (c *Claim) Fenced() cluster.Store { return fenced{c.cfg.Store, c} }

type fenced struct {
	cluster.Store
	claim *Claim
}

// Unwrap returns the store that is fenced.
func (f fenced) Unwrap() cluster.Store { return f.Store }

// fencer is a Store that writes entries again when their lease has ended.
type fencer interface {
	HoldFenced(context.Context, string, func() cluster.Condition) (cluster.Lease, error)
}

// Hold adds the condition to such writes, too.
func (f fenced) Hold(ctx context.Context, owner string) (cluster.Lease, error) {
	if s, ok := cluster.As[fencer](f.Store); ok {
		return s.HoldFenced(ctx, owner, f.claim.condition)
	}
	return f.Store.Hold(ctx, owner)
}

// Commit adds the condition that this machine still is the holder. A transaction has one condition less for its caller.
func (f fenced) Commit(ctx context.Context, txn cluster.Txn) (uint64, error) {
	fence := f.claim.condition()
	if fence.ModifyIndex == 0 {
		return 0, &cluster.AwayError{Err: errUnknown, After: TTL}
	}
	txn.If = append(txn.If[:len(txn.If):len(txn.If)], fence)
	index, err := f.Store.Commit(ctx, txn)
	conflict, ok := errors.AsType[*cluster.ConflictError](err)
	if !ok || conflict.Entry.Key != fence.Key {
		return index, err
	}
	f.claim.lose()
	return 0, fmt.Errorf("%w: %w", cluster.ErrUnavailable, ErrLost)
}
