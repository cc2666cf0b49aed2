package tokensync

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/identity"
)

const keysPrefix = "fleet/keys/" // and the ID of an allocation, whose machine has the keys

// keySet is a JWK set.
type keySet struct {
	Keys []json.RawMessage `json:"keys"`
}

// Keys are the public keys of this machine's ring, as an allocation publishes them.
type Keys struct {
	Store  cluster.Store
	Ring   *identity.Keyring // follows its file: see identity.Keyring.Watch
	Alloc  string            // the allocation's ID; the keys end with its lease
	Logger *slog.Logger
}

// Run publishes the keys, again with each change of the ring, until ctx ends.
func (k *Keys) Run(ctx context.Context) {
	var held cluster.Lease
	release := func() {
		if held != nil {
			_ = held.Close() // it ends with the process at the latest
			held = nil
		}
	}
	defer release()
	for pauses := newPauses(); ctx.Err() == nil; {
		changed := k.Ring.Replaced()
		err := func() (err error) {
			ctx, cancel := context.WithTimeout(ctx, attemptTime)
			defer cancel()
			if held == nil {
				held, err = k.Store.Hold(ctx, k.Alloc)
			}
			if err == nil {
				op := cluster.Operation{Key: keysPrefix + k.Alloc, Value: k.Ring.JWKS(), Lease: k.Alloc}
				_, err = k.Store.Commit(ctx, cluster.Txn{Then: []cluster.Operation{op}})
			}
			return err
		}()
		if err == nil {
			pauses.Reset()
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		if errors.Is(err, cluster.ErrLeaseEnded) {
			release()
		}
		k.Logger.Debug("other machines don't know this one's keys yet; taskapi tries again", "error", err)
		_ = pauses.Sleep(ctx) // the loop sees that ctx has ended
	}
}

func keyID(jwk json.RawMessage) string {
	var named struct {
		ID string `json:"kid"`
	}
	_ = json.Unmarshal(jwk, &named) // a key without an ID is found by nobody
	return named.ID
}

// AllKeys returns a JWK set with the keys of all machines that share the store. FreshTime after the last answer of the
// store, other machines' keys are left out, since they may no longer be good.
func AllKeys(ctx context.Context, store cluster.Store, own []byte) []byte {
	var set keySet
	if json.Unmarshal(own, &set) != nil {
		return own
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTime/2)
	defer cancel()
	span := cluster.Span{Prefix: keysPrefix, Local: true}
	page, err := store.List(ctx, span)
	if f, ok := cluster.As[cluster.Fresher](store); ok && !time.Now().Before(f.FreshUntil(keysPrefix)) {
		span.Local = false
		page, err = store.List(ctx, span)
	}
	if err != nil {
		return own
	}
	known := map[string]bool{}
	for _, jwk := range set.Keys {
		known[keyID(jwk)] = true
	}
	sets := map[string]bool{} // the allocations of a machine publish the same
	for _, e := range page.Entries {
		var other keySet
		if e.Damaged || sets[string(e.Value)] || json.Unmarshal(e.Value, &other) != nil {
			continue
		}
		sets[string(e.Value)] = true
		for _, jwk := range other.Keys {
			if id := keyID(jwk); id != "" && !known[id] {
				known[id] = true
				set.Keys = append(set.Keys, jwk)
			}
		}
	}
	all, err := json.Marshal(set)
	if err != nil {
		return own
	}
	return all
}
