package tokensync_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/memory"
	"taskapi/cmd/taskapi/internal/tokensync"
	"taskapi/identity"
	"taskapi/identity/revocation"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

// link is a machine's way to the store.
type link struct {
	cluster.Store
	away, stale atomic.Bool
}

func (l *link) Commit(ctx context.Context, txn cluster.Txn) (uint64, error) {
	if l.away.Load() {
		return 0, fmt.Errorf("%w: a test", cluster.ErrUnavailable)
	}
	return l.Store.Commit(ctx, txn)
}

func (l *link) List(ctx context.Context, span cluster.Span) (cluster.Page, error) {
	if l.away.Load() {
		return cluster.Page{}, fmt.Errorf("%w: a test", cluster.ErrUnavailable)
	}
	return l.Store.List(ctx, span)
}

func (l *link) FreshUntil(string) time.Time {
	if l.stale.Load() {
		return time.Now().Add(-time.Second)
	}
	return time.Now().Add(cluster.FreshTime)
}

// until waits for something that other goroutines and the kernel bring about.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if !polltest.Until(ok) {
		t.Fatal("never ", what)
	}
}

func background(t *testing.T, run ...func(context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, f := range run {
		all.Go(func() { f(ctx) })
	}
	end = sync.OnceFunc(func() { cancel(); all.Wait() })
	t.Cleanup(end)
	return end
}

// machine is one with a list of its own.
func machine(t *testing.T, store cluster.Store) (*link, *revocation.List) {
	t.Helper()
	list := must.Get(revocation.Open(revocation.Config{Dir: filepath.Join(t.TempDir(), "revocations")}))(t)
	t.Cleanup(func() { list.Close() })
	l := &link{Store: store}
	s := &tokensync.Revocations{Store: l, List: list, Logger: slog.New(slog.DiscardHandler)}
	background(t, s.Run, func(ctx context.Context) { list.Watch(ctx, s.Logger) })
	return l, list
}

// TestRevocationsAreEverywhere: what is revoked on one machine is refused on the others, also by one that was away.
func TestRevocationsAreEverywhere(t *testing.T) {
	store := memory.New()
	_, a := machine(t, store.Open())
	away, b := machine(t, store.Open())
	away.away.Store(true)
	_, c := machine(t, store.Open())
	stolen, theirs := &identity.Claims{ID: "stolen"}, &identity.Claims{Task: "web", IssuedAt: time.Now().Unix() - 5}
	revoke := func(list *revocation.List, r revocation.Rule) {
		t.Helper()
		must.Get(list.Add(r))(t)
	}
	revoke(a, revocation.Rule{TokenID: "stolen"})
	until(t, "refused by another machine", func() bool { return c.Revoked(stolen) })
	revoke(b, revocation.Rule{Task: "web", Before: time.Now().Unix()})
	if err := tokensync.Publish(t.Context(), away, b); !errors.Is(err, tokensync.ErrUnknownElsewhere) {
		t.Errorf("publishing without a store: %v", err)
	}
	if a.Revoked(theirs) || b.Revoked(stolen) {
		t.Error("a machine that is away knows and tells all the same")
	}
	away.away.Store(false)
	until(t, "refused by one that was away", func() bool { return b.Revoked(stolen) })
	until(t, "told by one that was away", func() bool { return a.Revoked(theirs) && c.Revoked(theirs) })
	_, late := machine(t, store.Open())
	until(t, "refused by one that comes later", func() bool { return late.Revoked(stolen) && late.Revoked(theirs) })
	// When all is known, nobody writes.
	_, before, err := store.Get(t.Context(), "k")
	must.OK(t, err)
	must.OK(t, tokensync.Publish(t.Context(), store, late))
	if _, after, _ := store.Get(t.Context(), "k"); after != before {
		t.Errorf("the store's index has become %d, from %d", after, before)
	}
}

// TestOddRevocations: entries that are no rules change nothing, and a time that lies ahead is no later than now.
func TestOddRevocations(t *testing.T) {
	store := memory.New()
	_, list := machine(t, store.Open())
	must.Get(list.Add(revocation.Rule{TokenID: "one", Until: time.Now().Unix() + 100}))(t)
	must.OK(t, tokensync.Publish(t.Context(), store, list))
	page, err := store.List(t.Context(), cluster.Span{Prefix: "fleet/revocations/"})
	if err != nil || len(page.Entries) != 1 {
		t.Fatal(page, err)
	}
	key := page.Entries[0].Key
	for _, value := range []string{
		"", "[", "{}", `{"before":1,"until":99999999999}`, `{"jti":"another","until":99999999999}`,
	} {
		must.Get(store.Commit(t.Context(), cluster.Txn{Then: []cluster.Operation{{Key: key, Value: []byte(value)}}}))(t)
		until(t, "written again", func() bool {
			e, _, err := store.Get(t.Context(), key)
			return err == nil && string(e.Value) == string(page.Entries[0].Value)
		})
	}
	if rules := list.Rules(); len(rules) != 1 {
		t.Errorf("%+v", rules)
	}
	ahead := revocation.Rule{Task: "t", Before: time.Now().Unix() + 1000, Until: time.Now().Unix() + 2000}
	must.OK(t, list.Merge([]revocation.Rule{ahead, {Task: "u", Before: 1, Until: 1}}))
	rules := list.Rules()
	if len(rules) != 2 || rules[1].Before > time.Now().Unix()+1 {
		t.Errorf("%+v", rules)
	}
}

// keysOf returns the IDs of the keys in a set.
func keysOf(t *testing.T, text []byte) (ids []string) {
	t.Helper()
	var set struct{ Keys []struct{ Kid string } }
	must.OK(t, json.Unmarshal(text, &set))
	for _, k := range set.Keys {
		ids = append(ids, k.Kid)
	}
	slices.Sort(ids)
	return ids
}

// TestKeys: the key set of each machine has the keys of all, those of a rotated ring, too; one that was removed, and
// those of a machine that is gone, vanish.
func TestKeys(t *testing.T) {
	store := memory.New()
	ring := func(alloc string) (*identity.Keyring, func()) {
		k := must.Get(identity.OpenKeyring(identity.KeyringConfig{Dir: filepath.Join(t.TempDir(), "keyring")}))(t)
		s := &tokensync.Keys{Store: store.Open(), Ring: k, Alloc: alloc,
			Logger: slog.New(slog.DiscardHandler)}
		return k, background(t, s.Run, func(ctx context.Context) { k.Watch(ctx, s.Logger) })
	}
	a, _ := ring("a")
	b, endB := ring("b")
	l := &link{Store: store}
	wants := func(what string, want ...string) {
		t.Helper()
		slices.Sort(want)
		until(t, what, func() bool { return slices.Equal(keysOf(t, tokensync.AllKeys(t.Context(), l, a.JWKS())), want) })
	}
	first, other := a.Active().ID, b.Active().ID
	wants("both", first, other)
	rotated := must.Get(b.Rotate())(t)
	wants("the rotated key, too", first, other, rotated.ID)
	must.OK(t, b.Remove(other))
	wants("without the removed key", first, rotated.ID)
	l.stale.Store(true)
	l.away.Store(true)
	if ids := keysOf(t, tokensync.AllKeys(t.Context(), l, a.JWKS())); len(ids) != 1 {
		t.Errorf("while other machines can't be heard: %v", ids)
	}
	l.stale.Store(false)
	l.away.Store(false)
	must.Get(store.Commit(t.Context(), cluster.Txn{Then: []cluster.Operation{
		{Key: "fleet/keys/x", Value: []byte(`{"keys":[{"kid":""},7]}`)}, {Key: "fleet/keys/z", Value: []byte("[")},
		{Key: "fleet/keys/", Value: []byte(`{"kid":"y"}`)}}}))(t)
	wants("without odd entries", first, rotated.ID)
	endB()
	wants("without the machine that is gone", first)
}
