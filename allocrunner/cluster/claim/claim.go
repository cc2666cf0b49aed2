// Package claim has the right to run an allocation that one of several machines may run: the one that holds the claim
// on its name. The others stand by.
//
// A holder renews its claim in the store. It may run the allocation for Held from the moment at which it sent the last
// renewal that succeeded. Another machine takes the claim when it has seen no renewal for TTL, which is longer, and
// takes it with a write that fails if there was one meanwhile. So at most one machine believes at any time that it may
// run the allocation, as long as the clocks of all machines run at nearly the same speed: no clock is compared with
// another. Each change of the holder has an index of its own. A Fenced store refuses the writes of a process whose
// claim another machine has taken, even if that process does not know.
//
// A renewal writes an entry. A full store refuses writes and takes deletions, so a renewal then deletes the entry. A
// machine that wants a claim without that entry writes the entry first, and then waits for TTL: a holder that lives
// changes the entry again, by a write or a deletion.
//
// Who may write to the store without the machines' key can delete a claim, or restore values by which it was released
// before. So a claim without entries is taken after TTL, too. A claim that was released is taken at once if the renewal
// has the index of the release: the store gives each write another index, so values that were restored don't match.
//
// The package knows no runner. What must not outlive a claim follows Claim.Until.
package claim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/internal/wake"
)

// The times of a claim.
const (
	// TTL is how long a claim lasts that is not renewed, as others see it.
	TTL = 15 * time.Second
	// Held is how long its holder may use it: the rest of TTL is for killing tasks, and for clocks that run differently.
	Held = 10 * time.Second
	// renewEvery is the time between renewals. Two may fail.
	renewEvery = 3 * time.Second
	// attemptTime bounds one use of the store.
	attemptTime = 2500 * time.Millisecond
	// retryPause is the pause after a renewal that failed.
	retryPause = 500 * time.Millisecond
)

var (
	// ErrLost: another machine holds the claim.
	ErrLost = errors.New("another machine has taken the allocation over")
	// ErrComplete: the allocation has run to its end while another machine stood by.
	ErrComplete = errors.New("the allocation is complete, on another machine")

	errUnknown = errors.New("another machine may have the same claim on the allocation")
)

// root begins the keys of claims: claims/NAMESPACE/NAME/holder and .../renewal.
const root = "claims/"

// Name names an allocation that one of several machines runs.
type Name struct{ Namespace, Alloc string }

func (n Name) prefix() string { return root + n.Namespace + "/" + n.Alloc + "/" }
func (n Name) holder() string { return n.prefix() + "holder" }

// renewal is written by the holder, again and again, or deleted while the store is full. Only its index counts, except
// after a release: then its value is the index of the write that released the claim.
func (n Name) renewal() string { return n.prefix() + "renewal" }

// Holder is the machine that holds a claim, or held it last.
type Holder struct {
	AllocID  string
	NodeID   string
	NodeName string
	TTL      time.Duration
	Released bool `json:",omitempty"` // it has given the claim up, and nothing of the allocation runs
	Complete bool `json:",omitempty"` // and the allocation has run to its end
}

// Config says what to claim. All fields but Now are required.
type Config struct {
	Store  cluster.Store
	Name   Name
	Holder Holder               // this one
	Now    func() time.Duration // since the start of the machine; nil for the machine's clock
}

// seen is the state of a claim, and since when it is known to be so.
type seen struct {
	holder, renewal uint64 // ModifyIndex
	free            bool   // its holder has released it, and nobody has written it since
	since           time.Time
}

// Waiting are functions that Await calls while it waits; nil for nobody.
type Waiting struct {
	Holder func(Holder) // another machine holds the claim; called again for each other holder
	Nobody func()       // no machine is known to have held it, which may be wrong until TTL has passed; called once
	Failed func(error)  // the store can't be used; called once until it can
}

// Await takes the claim as soon as its holder has released it, or when nobody has renewed it for TTL. The holder that
// it had before is returned, too; its AllocID is empty for none. Errors: ErrComplete if that happened meanwhile, ctx's.
func Await(ctx context.Context, cfg Config, on Waiting) (*Claim, Holder, error) {
	var last seen
	var shown uint64
	failing, unknown, incomplete := false, false, false
	failed := func(err error) {
		if !failing && on.Failed != nil && ctx.Err() == nil {
			on.Failed(err)
		}
		failing = true
		_ = wake.Sleep(ctx, retryPause) // the next round sees that ctx has ended
	}
	for {
		before, now, index, err := look(ctx, cfg.Store, cfg.Name)
		switch {
		case ctx.Err() != nil:
			return nil, Holder{}, ctx.Err()
		case err != nil:
			failed(err)
			continue
		case before.Complete && incomplete:
			return nil, before, ErrComplete
		}
		incomplete = incomplete || !before.Complete
		if now.holder != last.holder || now.renewal != last.renewal || last.since.IsZero() {
			last = now
		}
		if shown != now.holder && now.holder != 0 && !before.Released {
			shown = now.holder
			if on.Holder != nil {
				on.Holder(before)
			}
		}
		if now.holder == 0 && !unknown && on.Nobody != nil {
			unknown = true
			on.Nobody()
		}
		if now.renewal == 0 {
			if err := ask(ctx, cfg, now.holder); err != nil && !cluster.IsConflict(err) {
				failed(err)
			}
			continue
		}
		wait := max(TTL, before.TTL) - time.Since(last.since)
		if now.free || wait <= 0 {
			c, err := take(ctx, cfg, last)
			if err == nil {
				return c, before, nil
			}
			if !cluster.IsConflict(err) {
				failed(err)
			}
			continue
		}
		failing = false
		waiting, cancel := context.WithTimeout(ctx, wait)
		_, err = cfg.Store.Watch(waiting, cfg.Name.prefix(), index)
		if err != nil && waiting.Err() == nil {
			failed(err)
		}
		cancel()
	}
}

// look reads a claim. What it returns was so at a moment before since.
func look(ctx context.Context, store cluster.Store, name Name) (holder Holder, now seen, index uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	page, err := store.List(ctx, cluster.Span{Prefix: name.prefix()})
	if err != nil {
		return holder, now, 0, err
	}
	now.since = time.Now()
	var released uint64
	for _, e := range page.Entries {
		switch e.Key {
		case name.renewal():
			now.renewal = e.ModifyIndex
			_ = json.Unmarshal(e.Value, &released) // other renewals have no value
		case name.holder():
			now.holder = e.ModifyIndex
			// A holder that can't be read is from a later version of this program, or damaged. It holds the claim all the
			// same, until it renews no more.
			if e.Damaged || json.Unmarshal(e.Value, &holder) != nil {
				holder = Holder{NodeName: "an unknown machine"}
			}
		}
	}
	now.free = holder.Released && released == now.holder
	return holder, now, page.Index, nil
}

// ask writes the missing renewal of a claim, so that a later one can be seen, whether it writes or deletes.
func ask(ctx context.Context, cfg Config, holder uint64) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	_, err := cfg.Store.Commit(ctx, cluster.Txn{
		If:   []cluster.Condition{{Key: cfg.Name.holder(), ModifyIndex: holder}, {Key: cfg.Name.renewal()}},
		Then: []cluster.Operation{{Key: cfg.Name.renewal(), Value: []byte{}}},
	})
	return err
}

// take takes a claim that is as it was seen.
func take(ctx context.Context, cfg Config, as seen) (*Claim, error) {
	c := newClaim(cfg, 0)
	cfg.Holder.TTL = TTL
	value, err := json.Marshal(cfg.Holder)
	if err != nil {
		return nil, err
	}
	sent := c.now()
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	index, err := cfg.Store.Commit(ctx, cluster.Txn{
		If: []cluster.Condition{{Key: cfg.Name.holder(), ModifyIndex: as.holder},
			{Key: cfg.Name.renewal(), ModifyIndex: as.renewal}},
		Then: []cluster.Operation{{Key: cfg.Name.holder(), Value: value},
			{Key: cfg.Name.renewal(), Value: []byte{}}},
	})
	if err != nil {
		// If the write was made all the same, nobody renews it, and it is taken again after TTL.
		return nil, fmt.Errorf("claim %s: %w", cfg.Name.Alloc, err)
	}
	c.index = index
	c.extend(sent)
	return c, nil
}
