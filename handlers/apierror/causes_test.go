package apierror_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/memory"
	"taskapi/allocrunner/cluster/registry"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/allocrunner/interfaces"
	"taskapi/handlers/apierror"
	"taskapi/internal/must"
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

// TestStoreErrors: what a caller or the store is the cause of is an error of the API.
func TestStoreErrors(t *testing.T) {
	store := &fullStore{Store: memory.New()}
	of := func(s cluster.Store, open error) *variables.Service {
		return variables.New(variables.Config{Store: s, Sealer: plain{open}})
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
	must.OK(t, acquire())
	closed := memory.New()
	_ = closed.Close()
	put := func(v *api.Variable, check *uint64) error { _, _, err := vars.Put(t.Context(), v, check); return err }
	for name, c := range map[string]struct {
		want apierror.Kind
		do   func() error
	}{
		"a bad path": {apierror.Invalid, func() error { return put(v("a b"), nil) }},
		"no variable": {apierror.NoLockVariable, func() error {
			_, _, err := vars.Renew(t.Context(), "default", "none", "x")
			return err
		}},
		"no lock": {apierror.NoLock, func() error {
			_, _, err := vars.Renew(t.Context(), "default", "free", "x")
			return err
		}},
		"another's": {apierror.VariableLocked, func() error {
			_, _, err := vars.Renew(t.Context(), "default", "locked", "x")
			return err
		}},
		"damaged": {apierror.Unavailable, func() error {
			_, _, err := of(store, errors.New("damaged")).Read(t.Context(), "default", "free")
			return err
		}},
		"away for a while": {apierror.Unavailable, func() error {
			store.err = &cluster.AwayError{Err: errors.New("refused"), After: 2 * time.Second}
			defer func() { store.err = nil }()
			err := put(v("new"), nil)
			if after := apierror.Of(err).RetryAfter; after != 2*time.Second {
				t.Errorf("a client may try again after %v", after)
			}
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
		"another key": {apierror.Unavailable, func() error {
			store.err = cluster.ErrKey
			defer func() { store.err = nil }()
			err := put(v("new"), nil)
			if said := apierror.Of(err).Error(); !strings.Contains(said, "cluster.key_file") {
				t.Errorf("a client reads %q", said)
			}
			return err
		}},
		"away": {apierror.Unavailable, func() error {
			_, _, err := of(closed, nil).List(t.Context(), "default", "", variables.Everything)
			return err
		}},
		"services away": {apierror.Unavailable, func() error {
			_, _, err := registry.New(closed).Services(t.Context(), "", "")
			return err
		}},
		"no service": {apierror.NoService, func() error {
			_, err := registry.New(store).Deregister(t.Context(), "default", "a", "b")
			return err
		}},
	} {
		if got := apierror.Of(c.do()); got.Kind != c.want {
			t.Errorf("%s: got %v, want kind %v", name, got, c.want)
		}
	}
}

// TestRunnerErrors: what a runner's errors are to a client.
func TestRunnerErrors(t *testing.T) {
	for _, test := range []struct {
		err    error
		status int
		words  string
	}{
		{interfaces.ErrTaskNotFound, 404, "Task not found"},
		{interfaces.ErrTaskNotRunning, 409, "Task not running"},
		{interfaces.ErrTerminal, 409, "restart of an alloc that should not run"},
		{interfaces.ErrStarting, 503, "the allocation is being set up or resumed: try again"},
		{interfaces.ErrInvalidJob, 400, "x: " + interfaces.ErrInvalidJob.Error()},
		{&interfaces.DestructiveError{Changes: []string{"a", "b"}}, 409, "can't be updated in place: a; b"},
		{interfaces.ErrStateFile, 503, "the allocation goes on as it is: x: " + interfaces.ErrStateFile.Error()},
		{&interfaces.FileError{Path: "a/b", Err: fs.ErrNotExist}, 404, "a/b: no such file or directory"},
		{&interfaces.FileError{Path: "a", Err: interfaces.ErrIsDirectory}, 400, "x: a: is a directory"},
		{&interfaces.ExecError{Reason: "no such program"}, 400, "no such program"},
		{&interfaces.ExecError{Reason: "no terminals", Err: errors.ErrUnsupported}, 409, "no terminals"},
		{&http.MaxBytesError{Limit: 7}, 413, "the body is larger than 7 bytes"},
		{errors.New("a fault"), 500, "internal error"},
		{fs.ErrNotExist, 500, "internal error"}, // of no file of an allocation's
	} {
		got := apierror.Of(fmt.Errorf("x: %w", test.err))
		if errors.Is(test.err, interfaces.ErrStarting) != (got.RetryAfter > 0) {
			t.Errorf("%v is to be tried again after %v", test.err, got.RetryAfter)
		}
		if got.Kind.Status() != test.status || got.Message != test.words || test.status != 413 && !errors.Is(got, test.err) {
			t.Errorf("%v is %d %+v, want %d %q", test.err, got.Kind.Status(), got, test.status, test.words)
		}
	}
}

func TestReword(t *testing.T) {
	for _, found := range []error{interfaces.ErrTaskNotFound, apierror.New(apierror.NoTask)} {
		err := apierror.Reword(fmt.Errorf("restart: %w", found), apierror.NoTask, apierror.NoTaskRunner, "100%")
		got, ok := errors.AsType[*apierror.Error](err)
		if !ok || got.Message != "Could not find task runner for task: 100%" || !errors.Is(got, found) {
			t.Errorf("reworded: %v", got)
		}
	}
	for _, other := range []error{nil, errors.New("a fault"), apierror.New(apierror.TaskNotRunning)} {
		if got := apierror.Reword(other, apierror.NoTask, apierror.NoTaskRunner, "x"); !errors.Is(got, other) {
			t.Errorf("%v became %v", other, got)
		}
	}
}
