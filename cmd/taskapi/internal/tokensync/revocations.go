// Package tokensync shares revocations and public keys between the machines that share a store. Each machine also keeps
// the revocations in its own list. The public keys are for verifiers elsewhere: no machine trusts another machine's
// keys on its own sockets. The package trusts the values that the store returns, because the store seals them, so only
// machines of the cluster can have written them.
package tokensync

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/identity/revocation"
	"taskapi/internal/wake"
)

// The times of this package.
const (
	attemptTime = 5 * time.Second // for one use of the store
	// forgetAfter is how long an expired rule stays, for machines whose clocks are behind.
	forgetAfter = time.Hour
	batch       = 64 // operations of a transaction
	// spreadTime is how long a process waits at most before it writes a rule that another process of this machine has
	// added. Usually the other process has written the rule by then.
	spreadTime = time.Second
)

const revocationsPrefix = "fleet/revocations/"

// keyOf returns the key of a rule: one for each group of tokens that rules can refuse.
func keyOf(r revocation.Rule) string {
	text, _ := json.Marshal([]string{r.TokenID, r.AllocationID, r.Task}) // strings always have JSON
	sum := sha256.Sum256(text)
	return revocationsPrefix + base64.RawURLEncoding.EncodeToString(sum[:])
}

// Revocations are a list of this machine and the rules in a store.
type Revocations struct {
	Store  cluster.Store
	List   *revocation.List // follows its file: see revocation.List.Watch
	Logger *slog.Logger

	synced []uint64          // the indexes of the store's rules when they were last the same as rules
	rules  []revocation.Rule // of the list
}

func newPauses() wake.Backoff {
	return wake.Backoff{First: 200 * time.Millisecond, Last: 10 * time.Second}
}

// Run takes the rules of other machines into the list, and writes the list's rules to the store, until ctx ends. While
// the store is away, only the list decides. When the store is back, Run catches up.
func (s *Revocations) Run(ctx context.Context) {
	for pauses := newPauses(); ctx.Err() == nil; {
		here := s.List.Changed()
		index, err := s.Sync(ctx)
		if err == nil {
			pauses.Reset()
			err = s.await(ctx, index, here)
		}
		if err != nil {
			s.Logger.Debug("revocations are not the same on all machines yet; taskapi tries again", "error", err)
			_ = pauses.Sleep(ctx) // the loop sees that ctx has ended
		}
	}
}

// await returns at a change of the store's rules after an index, or soon after here is closed. Errors: the store's.
func (s *Revocations) await(ctx context.Context, index uint64, here <-chan struct{}) error {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-here:
			_ = wake.Sleep(waiting, spreadTime/2+rand.N(spreadTime/2))
			cancel()
		case <-waiting.Done():
		}
	}()
	if _, err := s.Store.Watch(waiting, revocationsPrefix, index); err != nil && waiting.Err() == nil {
		return err
	}
	return nil
}

// Sync makes the list and the store the same once, and returns the index of the store to go on from.
func (s *Revocations) Sync(ctx context.Context) (uint64, error) {
	for local := true; ; local = false {
		index, err := s.sync(ctx, local)
		if !cluster.IsConflict(err) { // else another process has written the same
			return index, err
		}
	}
}

func (s *Revocations) sync(ctx context.Context, local bool) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	page, err := s.Store.List(ctx, cluster.Span{Prefix: revocationsPrefix, Local: local})
	if err != nil {
		return 0, fmt.Errorf("read the revocations of other machines: %w", err)
	}
	var indexes []uint64
	for _, e := range page.Entries {
		indexes = append(indexes, e.ModifyIndex)
	}
	if slices.Equal(indexes, s.synced) && slices.Equal(s.List.Rules(), s.rules) && s.synced != nil {
		return page.Index, nil // this process has changed the list itself
	}
	entries := make(map[string]cluster.Entry, len(page.Entries))
	there := make(map[string]revocation.Rule, len(page.Entries))
	var all []revocation.Rule
	var txn cluster.Txn
	change := func(key string, op cluster.Operation) error {
		op.Key = key
		txn.If = append(txn.If, cluster.Condition{Key: key, ModifyIndex: entries[key].ModifyIndex})
		txn.Then = append(txn.Then, op)
		if len(txn.Then) < batch {
			return nil
		}
		return s.commit(ctx, &txn)
	}
	now := time.Now()
	for _, e := range page.Entries {
		entries[e.Key] = e
		var r revocation.Rule
		if e.Damaged || json.Unmarshal(e.Value, &r) != nil || keyOf(r) != e.Key {
			continue // the machine whose list has the rule writes it again
		}
		if time.Unix(r.Until, 0).Add(forgetAfter).Before(now) {
			if err := change(e.Key, cluster.Operation{Delete: true}); err != nil {
				return 0, err
			}
			continue
		}
		there[e.Key] = r
		all = append(all, r)
	}
	merged := s.List.Merge(all)
	if merged != nil { // a list that is full has rules that other machines lack all the same
		merged = fmt.Errorf("take over the revocations of other machines: %w", merged)
		s.Logger.Error("revocations of other machines do not hold here", "error", merged)
	}
	for _, r := range s.List.Rules() {
		key := keyOf(r)
		if other, ok := there[key]; ok && other.Before >= r.Before && other.Until >= r.Until {
			continue
		} else if ok {
			r.Before, r.Until = max(r.Before, other.Before), max(r.Until, other.Until)
		}
		value, err := json.Marshal(r)
		if err == nil {
			err = change(key, cluster.Operation{Value: value})
		}
		if err != nil {
			return 0, err
		}
	}
	if len(txn.Then) == 0 && merged == nil {
		s.synced, s.rules = indexes, s.List.Rules()
	}
	return page.Index, errors.Join(s.commit(ctx, &txn), merged)
}

// commit writes a transaction, and empties it.
func (s *Revocations) commit(ctx context.Context, txn *cluster.Txn) error {
	if len(txn.Then) == 0 {
		return nil
	}
	_, err := s.Store.Commit(ctx, *txn)
	*txn = cluster.Txn{}
	if err != nil && !cluster.IsConflict(err) {
		err = fmt.Errorf("tell other machines of revocations: %w", err)
	}
	return err
}

// ErrUnknownElsewhere means that a revocation is in the list of this machine, and that other machines do not know of it
// yet.
var ErrUnknownElsewhere = errors.New("only this machine knows of the revocation")

// Publish writes the rules of a list to the store, for a command that has just added one. Errors: ErrUnknownElsewhere.
func Publish(ctx context.Context, store cluster.Store, list *revocation.List) error {
	s := Revocations{Store: store, List: list, Logger: slog.New(slog.DiscardHandler)}
	if _, err := s.Sync(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrUnknownElsewhere, err)
	}
	return nil
}
