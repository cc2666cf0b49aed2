package clusterapi_test

import (
	"context"
	"errors"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/memory"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/handlers"
	"taskapi/handlers/apierror"
	"taskapi/handlers/clusterapi"
)

// plain seals nothing.
type plain struct{ err error }

func (plain) Seal(items []byte, _ string) ([]byte, error)    { return items, nil }
func (p plain) Open(sealed []byte, _ string) ([]byte, error) { return sealed, p.err }

// fullStore takes nothing any more.
type fullStore struct {
	cluster.Store
	err error
}

func (s *fullStore) Commit(ctx context.Context, txn cluster.Txn) (uint64, error) {
	if s.err != nil {
		return 0, s.err
	}
	return s.Store.Commit(ctx, txn)
}

// TestErrors: what a caller or the store is the cause of is an error of the API.
func TestErrors(t *testing.T) {
	store := &fullStore{Store: memory.New()}
	of := func(s cluster.Store, open error) handlers.Variables {
		return clusterapi.Variables(variables.New(variables.Config{Store: s, Sealer: plain{open}}))
	}
	vars := of(store, nil)
	v := func(path string) *api.Variable {
		return &api.Variable{Namespace: "default", Path: path, Items: api.VariableItems{"a": "b"}}
	}
	for _, path := range []string{"free", "locked"} {
		if _, _, err := vars.Put(t.Context(), v(path), nil); err != nil {
			t.Fatal(err)
		}
	}
	acquire := func() error {
		locked := v("locked")
		locked.Lock = &api.VariableLock{TTL: "10s", LockDelay: "1s"}
		_, _, err := vars.Acquire(t.Context(), locked)
		return err
	}
	if err := acquire(); err != nil {
		t.Fatal(err)
	}
	closed := memory.New()
	_ = closed.Close()
	put := func(v *api.Variable, check *uint64) error { _, _, err := vars.Put(t.Context(), v, check); return err }
	for name, c := range map[string]struct {
		want apierror.Kind
		do   func() error
	}{
		"a bad path":  {apierror.Invalid, func() error { return put(v("a b"), nil) }},
		"no variable": {apierror.NoLockVariable, func() error { _, _, err := vars.Renew(t.Context(), "default", "none", "x"); return err }},
		"no lock":     {apierror.NoLock, func() error { _, _, err := vars.Renew(t.Context(), "default", "free", "x"); return err }},
		"another's":   {apierror.VariableLocked, func() error { _, _, err := vars.Renew(t.Context(), "default", "locked", "x"); return err }},
		"damaged": {apierror.Unavailable, func() error {
			_, _, err := of(store, errors.New("damaged")).Read(t.Context(), "default", "free")
			return err
		}},
		"full": {apierror.StoreFull, func() error {
			store.err = cluster.ErrFull
			defer func() { store.err = nil }()
			return put(v("new"), nil)
		}},
		"uncertain": {apierror.Unavailable, func() error {
			store.err = cluster.ErrUncertain
			defer func() { store.err = nil }()
			return put(v("new"), nil)
		}},
		"away": {apierror.Unavailable, func() error {
			_, _, err := of(closed, nil).List(t.Context(), "default", "", variables.Everything)
			return err
		}},
		"services away": {apierror.Unavailable, func() error {
			_, _, err := clusterapi.Services(registry.New(closed)).Services(t.Context(), "", "")
			return err
		}},
		"no service": {apierror.NoService, func() error {
			_, err := clusterapi.Services(registry.New(store)).Deregister(t.Context(), "default", "a", "b")
			return err
		}},
	} {
		if got, ok := errors.AsType[*apierror.Error](c.do()); !ok || got.Kind != c.want {
			t.Errorf("%s: got %v, want kind %v", name, got, c.want)
		}
	}
	for path, err := range map[string]error{"free": put(v("free"), new(uint64)), "locked": acquire()} {
		if conflict, ok := errors.AsType[*handlers.VariableConflictError](err); !ok || conflict.Variable.Path != path {
			t.Errorf("a conflict is %v", err)
		}
	}
	if err := put(v("free"), nil); err != nil {
		t.Error(err)
	}
}
