package tokensync

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/identity"
)

const keysPrefix = "fleet/keys/"

// keySet is a JWK set.
type keySet struct {
	Keys []json.RawMessage `json:"keys"`
}

// Keys are the public keys of this machine's ring.
type Keys struct {
	Store  cluster.Store
	Ring   *identity.Keyring // follows its file: see identity.Keyring.Watch
	Lease  string            // with which the keys end
	Logger *slog.Logger
}

// Run publishes the keys, and removes those that are no longer in the ring, until ctx ends.
func (k *Keys) Run(ctx context.Context) {
	var held cluster.Lease
	release := func() {
		if held != nil {
			_ = held.Close() // it ends with the process at the latest
			held = nil
		}
	}
	defer release()
	mine := map[string]bool{} // by key of the store: what this process has seen in the ring
	follow(ctx, k.Store, keysPrefix, k.Ring.Replaced, func() (index uint64, err error) {
		ctx, cancel := context.WithTimeout(ctx, attemptTime)
		defer cancel()
		if held == nil {
			held, err = k.Store.Hold(ctx, k.Lease)
		}
		if err == nil {
			index, err = k.sync(ctx, mine)
		}
		if errors.Is(err, cluster.ErrLeaseEnded) {
			release()
		}
		if err != nil {
			k.Logger.Debug("other machines don't know this one's keys yet; taskapi tries again", "error", err)
		}
		return index, err
	})
}

// sync makes the store have the keys of the ring, and none that the ring had before.
func (k *Keys) sync(ctx context.Context, mine map[string]bool) (uint64, error) {
	page, err := k.Store.List(ctx, cluster.Span{Prefix: keysPrefix})
	if err != nil {
		return 0, err
	}
	there := map[string]cluster.Entry{}
	for _, e := range page.Entries {
		there[e.Key] = e
	}
	var ring keySet
	if err := json.Unmarshal(k.Ring.JWKS(), &ring); err != nil {
		return 0, err
	}
	var txn cluster.Txn
	for _, jwk := range ring.Keys {
		key := keysPrefix + keyID(jwk)
		if e := there[key]; e.ModifyIndex == 0 || !bytes.Equal(e.Value, jwk) {
			txn.Then = append(txn.Then, cluster.Operation{Key: key, Value: jwk, Lease: k.Lease})
		}
		mine[key] = true
		delete(there, key)
	}
	for key := range there {
		if mine[key] {
			txn.Then = append(txn.Then, cluster.Operation{Key: key, Delete: true})
		}
	}
	if len(txn.Then) == 0 {
		return page.Index, nil
	}
	index, err := k.Store.Commit(ctx, txn)
	if err != nil {
		return 0, fmt.Errorf("publish keys: %w", err)
	}
	return index, nil
}

func keyID(jwk json.RawMessage) string {
	var named struct {
		ID string `json:"kid"`
	}
	_ = json.Unmarshal(jwk, &named) // a key without an ID is found by nobody
	return named.ID
}

// AllKeys returns a JWK set with the keys of this machine and of all that share the store. Other machines' keys are
// left out while nobody knows whether they are still good, which is FreshTime after the store was last heard of.
func AllKeys(ctx context.Context, store cluster.Store, own []byte) []byte {
	var set keySet
	if json.Unmarshal(own, &set) != nil {
		return own
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTime/2)
	defer cancel()
	page, err := store.List(ctx, cluster.Span{Prefix: keysPrefix, Local: true})
	if f, ok := cluster.As[cluster.Fresher](store); err != nil || ok && !time.Now().Before(f.FreshUntil(keysPrefix)) {
		return own
	}
	known := map[string]bool{}
	for _, jwk := range set.Keys {
		known[keyID(jwk)] = true
	}
	for _, e := range page.Entries {
		if id := keyID(e.Value); !e.Damaged && id != "" && keysPrefix+id == e.Key && !known[id] {
			set.Keys = append(set.Keys, e.Value)
		}
	}
	all, err := json.Marshal(set)
	if err != nil {
		return own
	}
	return all
}
