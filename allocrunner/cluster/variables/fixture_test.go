package variables_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"go.uber.org/goleak"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/memory"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/identity"
	"taskapi/internal/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ns is the namespace of most tests.
const ns = "default"

// newSealer returns a sealer with a key of its own.
func newSealer(tb testing.TB) cluster.Sealer {
	tb.Helper()
	ring := must.Get(identity.OpenKeyring(identity.KeyringConfig{Dir: filepath.Join(tb.TempDir(), "keyring")}))(tb)
	return must.Get(ring.Sealer("variables"))(tb)
}

// fixture is variables in a store of memory.
type fixture struct {
	*variables.Service
	tb    testing.TB
	store cluster.Store
	now   func() (variables.Moment, error) // nil for the machine's clock
}

func newVariables(tb testing.TB) *fixture {
	tb.Helper()
	store := memory.New()
	tb.Cleanup(func() {
		if err := store.Close(); err != nil {
			tb.Error(err)
		}
	})
	return &fixture{variables.New(variables.Config{Store: store, Sealer: newSealer(tb)}), tb, store, nil}
}

// at returns the fixture with the clock of a synctest bubble.
func (f *fixture) at(sealer cluster.Sealer, boot *string) *fixture {
	begun := time.Now()
	now := func() (variables.Moment, error) { return variables.Moment{Boot: *boot, Since: time.Since(begun)}, nil }
	return &fixture{variables.New(variables.Config{Store: f.store, Sealer: sealer, Now: now}), f.tb, f.store, now}
}

// ctx ends with the test.
func (f *fixture) ctx() context.Context { return f.tb.Context() }

func variable(path string, items ...string) *api.Variable {
	v := &api.Variable{Namespace: ns, Path: path, Items: api.VariableItems{}}
	for i := 0; i < len(items); i += 2 {
		v.Items[items[i]] = items[i+1]
	}
	return v
}

// put writes a variable, whatever there is.
func (f *fixture) put(path string, items ...string) *api.Variable {
	f.tb.Helper()
	written, index, err := f.Put(f.ctx(), variable(path, items...), nil)
	if err != nil || written.ModifyIndex != index {
		f.tb.Fatalf("put %s: %+v at %d, %v", path, written, index, err)
	}
	return written
}

// read returns a variable, nil for none.
func (f *fixture) read(path string) *api.Variable {
	f.tb.Helper()
	v, index, err := f.Read(f.ctx(), ns, path)
	if err != nil || index == 0 || v != nil && v.ModifyIndex != index {
		f.tb.Fatalf("read %s: %+v at %d, %v", path, v, index, err)
	}
	return v
}

// paths lists the paths of variables.
func (f *fixture) paths(namespace, prefix string) string {
	f.tb.Helper()
	list, index, err := f.List(f.ctx(), namespace, prefix, variables.Everything)
	if err != nil || index == 0 {
		f.tb.Fatalf("list %s: at %d, %v", prefix, index, err)
	}
	var paths []string
	for _, m := range list {
		paths = append(paths, m.Namespace+":"+m.Path)
	}
	return strings.Join(paths, " ")
}

// wantConflict checks for a conflict with a variable of this index; 0: the conflict shows nothing of it.
func (f *fixture) wantConflict(err error, index uint64, locked bool) *api.Variable {
	f.tb.Helper()
	conflict, ok := errors.AsType[*variables.ConflictError](err)
	if !ok || conflict.Variable.ModifyIndex != index || conflict.Locked != locked {
		f.tb.Fatalf("error = %v, want a conflict with index %d, locked: %v", err, index, locked)
	}
	return conflict.Variable
}

// wantInvalid checks for an error about the request that has the words.
func (f *fixture) wantInvalid(err error, words string) {
	f.tb.Helper()
	if _, ok := errors.AsType[*variables.InvalidError](err); !ok || !strings.Contains(err.Error(), words) {
		f.tb.Errorf("error = %v, want an invalid request: %q", err, words)
	}
}
