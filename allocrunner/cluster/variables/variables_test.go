package variables_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/cluster"
	"taskapi/allocrunner/cluster/variables"
	"taskapi/identity"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func TestPutAndRead(t *testing.T) {
	f := newVariables(t)
	if v := f.read("a/b"); v != nil {
		t.Fatalf("there is %+v before it was written", v)
	}
	first := f.put("a/b", "k", "v")
	same.As(t, first, f.read("a/b"))
	if first.CreateIndex != first.ModifyIndex || first.CreateTime == 0 || first.CreateTime != first.ModifyTime {
		t.Errorf("new: %+v", first)
	}
	second := f.put("a/b", "k", "w", "l", "")
	want := *second
	want.CreateIndex, want.CreateTime = first.CreateIndex, first.CreateTime
	if diff := cmp.Diff(&want, f.read("a/b")); diff != "" || second.ModifyIndex <= first.ModifyIndex {
		t.Errorf("written again: %s", diff)
	}
	index, err := f.Delete(t.Context(), ns, "a/b", nil)
	if err != nil || index <= second.ModifyIndex || f.read("a/b") != nil {
		t.Errorf("deleted at %d: %v", index, err)
	}
	if again, err := f.Delete(t.Context(), ns, "a/b", nil); err != nil || again != index {
		t.Errorf("deleted again at %d, %v; want %d, since nothing has changed", again, err, index)
	}
	if third := f.put("a/b", "k", "x"); third.CreateIndex <= index {
		t.Errorf("made again with the index of its first life: %+v", third)
	}
}

// TestCheckAndSet has a row for what Nomad does with each expectation.
func TestCheckAndSet(t *testing.T) {
	f := newVariables(t)
	put := func(check uint64) (*api.Variable, error) {
		v, _, err := f.Put(t.Context(), variable("p", "k", "v"), &check)
		return v, err
	}
	remove := func(check uint64) error {
		_, err := f.Delete(t.Context(), ns, "p", &check)
		return err
	}
	_, err := put(7)
	f.wantConflict(err, 0, false) // something was expected, and there is nothing
	f.wantConflict(remove(7), 0, false)
	same.Error(t, nil, remove(0), "deleting nothing, as expected")
	v := must.Get(put(0))(t)
	_, err = put(0)
	shown := f.wantConflict(err, v.ModifyIndex, false)
	same.As(t, v, shown, "the conflict shows")
	_, err = put(v.ModifyIndex + 1)
	f.wantConflict(err, v.ModifyIndex, false)
	f.wantConflict(remove(0), v.ModifyIndex, false)
	f.wantConflict(remove(v.ModifyIndex-1), v.ModifyIndex, false)
	next := must.Get(put(v.ModifyIndex))(t)
	if err := remove(next.ModifyIndex); err != nil || f.read("p") != nil {
		t.Errorf("deleting what is there: %v", err)
	}
}

func TestInvalid(t *testing.T) {
	f := newVariables(t)
	big := variable("p", "k", strings.Repeat("v", variables.MaxItems))
	full := variable("p", "k", strings.Repeat("\x01", variables.MaxItems-1)) // which takes most room when it is stored
	of := func(change func(*api.Variable)) *api.Variable { v := variable("p", "k", "v"); change(v); return v }
	for words, v := range map[string]*api.Variable{
		"empty variables are invalid":    variable("p"),
		"variables are limited to 64KiB": big,
		"invalid path":                   variable("a b", "k", "v"),
		"is a reserved top-level":        variable("nomad", "k", "v"),
		"variable requires path":         variable("", "k", "v"),
		`wildcard ("*")namespace`:        of(func(v *api.Variable) { v.Namespace = "*" }),
		`invalid namespace ""`:           of(func(v *api.Variable) { v.Namespace = "" }),
		`invalid namespace "a/b"`:        of(func(v *api.Variable) { v.Namespace = "a/b" }),
		"should not contain lock definition": of(func(v *api.Variable) {
			v.Lock = &api.VariableLock{TTL: "15s"}
		}),
		`item "k" is no UTF-8 text: encode it, such as with`: variable("p", "k", "\xff"),
	} {
		_, _, err := f.Put(t.Context(), v, nil)
		f.wantInvalid(err, words)
	}
	if got, _, err := f.Put(t.Context(), full, nil); err != nil {
		t.Errorf("as large as can be: %v", err)
	} else if diff := cmp.Diff(got, f.read("p")); diff != "" {
		t.Error("what is as large as can be does not come back")
	}
	_, _, err := f.Read(t.Context(), "*", "p")
	f.wantInvalid(err, "wildcard")
	if v, index, err := f.Read(t.Context(), ns, "a b"); v != nil || index == 0 || err != nil {
		t.Errorf("read of a path that can't be: %+v, %v", v, err)
	}
}

func TestList(t *testing.T) {
	f := newVariables(t)
	for _, path := range []string{"nomad/jobs", "nomad/jobs/web", "nomad/jobs/web/g", "other", "nomad-jobs"} {
		f.put(path, "k", "v")
	}
	there := variable("other", "k", "v")
	there.Namespace = "prod"
	if _, _, err := f.Put(t.Context(), there, nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		namespace, prefix string
		want              string
	}{
		{ns, "", "default:nomad-jobs default:nomad/jobs default:nomad/jobs/web default:nomad/jobs/web/g default:other"},
		{ns, "nomad/jobs/", "default:nomad/jobs/web default:nomad/jobs/web/g"},
		{ns, "nomad/jobs/web/g/", ""},
		{"prod", "", "prod:other"},
		{"pro", "", ""},
		{"*", "oth", "default:other prod:other"},
	} {
		same.As(t, c.want, f.paths(c.namespace, c.prefix), c.namespace, " ", c.prefix)
	}
}

// TestAwait: a caller that waits from the index of an answer is woken by changes of the variables that concern it, and
// by no others.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newVariables(t)
		f.put("mine", "k", "v")
		_, after, err := f.Read(t.Context(), ns, "mine")
		must.OK(t, err)
		mine := func(_, path string) bool { return path == "mine" }
		woken := make(chan error)
		await := func() { woken <- f.Await(t.Context(), ns, "m", after, mine) }
		go await()
		synctest.Wait()
		f.put("mine/below", "k", "v")
		f.put("mind", "k", "v")
		synctest.Wait()
		select {
		case <-woken:
			t.Fatal("woken by another's change")
		default:
		}
		after = f.put("mine", "k", "w").ModifyIndex
		must.OK(t, <-woken)
		go await()
		synctest.Wait()
		must.Get(f.Delete(t.Context(), ns, "mine", nil))(t)
		must.OK(t, <-woken)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, after, _ = f.Read(ctx, ns, "mine")
		same.Error(t, context.DeadlineExceeded, f.Await(ctx, ns, "mine", after, mine), "with nothing to wake it")
	})
}

// reader is a store that counts the bytes of the values that it lists.
type reader struct {
	cluster.Store
	read int
}

func (r *reader) List(ctx context.Context, span cluster.Span) (cluster.Page, error) {
	page, err := r.Store.List(ctx, span)
	for _, e := range page.Entries {
		r.read += len(e.Value)
	}
	return page, err
}

// TestListsReadLittle: a list reads neither items nor the variables that don't concern the caller, since a task may
// list all the time.
func TestListsReadLittle(t *testing.T) {
	f := newVariables(t)
	large := strings.Repeat("x", variables.MaxItems-1)
	for _, path := range []string{"mine", "others/1", "others/2", "others/3"} {
		f.put(path, "k", large)
	}
	v := variable("mine", "k", large)
	// no header is longer
	v.Lock = &api.VariableLock{ID: strings.Repeat("\x01", 128), TTL: "24h0m0s", LockDelay: "24h0m0s"}
	if _, _, err := f.OfTask(ns, "job").Acquire(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	store := &reader{Store: f.store}
	kept := variables.New(variables.Config{Store: store, Sealer: noSealer{}})
	list, _, err := kept.List(t.Context(), ns, "", func(_, path string) bool { return path == "mine" })
	if err != nil || len(list) != 1 || list[0].Path != "mine" || list[0].CreateTime == 0 || list[0].Lock == nil ||
		*list[0].Lock != *v.Lock {
		t.Errorf("list: %+v, %v", list, err)
	}
	if store.read > 1024 {
		t.Errorf("%d bytes were read for a variable of one's own", store.read)
	}
	if list, _, err := kept.List(t.Context(), ns, "", variables.Everything); err != nil || len(list) != 4 ||
		store.read > 5*1024 {
		t.Errorf("%d were listed, %d bytes read, %v", len(list), store.read, err)
	}
}

// entry returns what is stored under a key.
func (f *fixture) entry(key string) cluster.Entry {
	f.tb.Helper()
	e, _, err := f.store.Get(f.ctx(), key)
	if err != nil || e.ModifyIndex == 0 {
		f.tb.Fatalf("%s: %+v, %v", key, e, err)
	}
	return e
}

// store writes an entry around the variables.
func (f *fixture) plant(key string, value []byte) {
	f.tb.Helper()
	if _, err := f.store.Commit(f.ctx(), cluster.Txn{Then: []cluster.Operation{{Key: key, Value: value}}}); err != nil {
		f.tb.Fatal(err)
	}
}

// TestSealed: a stored variable shows neither keys nor values of its items, and opens only at its own path and with its
// own key.
func TestSealed(t *testing.T) {
	f := newVariables(t)
	f.put("a", "password", "hunter2hunter2")
	kept := f.entry("vars/default/a").Value
	if bytes.Contains(kept, []byte("hunter2")) || bytes.Contains(kept, []byte("password")) {
		t.Errorf("stored: %q", kept)
	}
	f.plant("vars/default/b", kept)
	f.plant("vars/prod/a", kept)
	for _, at := range [][2]string{{ns, "b"}, {"prod", "a"}} {
		_, _, err := f.Read(t.Context(), at[0], at[1])
		if damaged, ok := errors.AsType[*variables.DamagedError](err); !ok || damaged.Path != at[1] ||
			!errors.Is(err, identity.ErrBadSeal) {
			t.Errorf("moved to %v: %v", at, err)
		}
	}
	other := &fixture{variables.New(variables.Config{Store: f.store, Sealer: newSealer(t)}), t, f.store, nil}
	same.Error(t, identity.ErrForeignSeal, same.Err2(other.Read(t.Context(), ns, "a")), "with another key")
}

// TestDamage: a damaged variable can't be read, but can be written and deleted, and no list fails for it.
func TestDamage(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"nothing left":     func([]byte) []byte { return nil },
		"no header":        func(v []byte) []byte { return v[1:] },
		"no items":         func(v []byte) []byte { return v[:bytes.IndexByte(v, '\n')+1] },
		"a bit of an item": func(v []byte) []byte { v[len(v)-1] ^= 1; return v },
		"a later version's": func(v []byte) []byte {
			return bytes.Replace(v, []byte(`"version":1`), []byte(`"version":2`), 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newVariables(t)
			f.put("bad", "k", "v")
			f.put("good", "k", "v")
			f.plant("vars/default/bad", damage(bytes.Clone(f.entry("vars/default/bad").Value)))
			_, _, err := f.Read(t.Context(), ns, "bad")
			if damaged, ok := errors.AsType[*variables.DamagedError](err); !ok ||
				!strings.Contains(err.Error(), `variable "bad"`) {
				t.Errorf("read: %v, %v", damaged, err)
			}
			same.As(t, "default:bad default:good", f.paths(ns, ""), "list")
			_, _, err = f.Put(t.Context(), variable("bad", "k", "v"), new(uint64))
			if shown := f.wantConflict(err, f.entry("vars/default/bad").ModifyIndex, false); shown.Items != nil {
				t.Errorf("the conflict has items: %+v", shown)
			}
			f.put("bad", "k", "new")
			if got := f.read("bad"); got.Items["k"] != "new" {
				t.Errorf("after it was written again: %+v", got)
			}
			f.plant("vars/default/bad", damage(bytes.Clone(f.entry("vars/default/bad").Value)))
			if _, err := f.Delete(t.Context(), ns, "bad", nil); err != nil || f.read("bad") != nil {
				t.Errorf("deleted: %v", err)
			}
		})
	}
}

// TestFull: the number and the size of variables are bounded. Deletions make room, and writing the same variable again
// and again takes no more.
func TestFull(t *testing.T) {
	f := newVariables(t)
	big := strings.Repeat("v", variables.MaxItems-1)
	stored := 0
	for ; ; stored++ {
		_, _, err := f.Put(t.Context(), variable(fmt.Sprintf("big/%d", stored), "k", big), nil)
		if errors.Is(err, variables.ErrFull) {
			break
		}
		must.OK(t, err)
	}
	if want := variables.MaxBytes / variables.MaxItems; stored > want || stored < want*9/10 {
		t.Errorf("%d variables of the largest size, want about %d", stored, want)
	}
	for range 20 {
		f.put("big/0", "k", big)
	}
	f.put("big/0", "k", "small")
	f.put("another", "k", "v")
	must.Get(f.Delete(t.Context(), ns, "big/1", nil))(t)
	f.put("big/1", "k", "back")

	t.Run("damaged", func(t *testing.T) { // it is counted again
		f.plant("usage/vars", []byte("no JSON"))
		same.Error(t, nil, same.Err2(f.Put(t.Context(), variable("more", "k", big), nil)))
		if _, _, err := f.Put(t.Context(), variable("more2", "k", big), nil); err != nil &&
			!errors.Is(err, variables.ErrFull) {
			t.Error(err)
		}
		same.Error(t, variables.ErrFull, same.Err2(f.Put(t.Context(), variable("more3", "k", big), nil)), "after a recount")
	})
}

// TestTasksLeaveRoom: tasks can't fill the variables, neither by number nor by size. The operator can still write, and
// so can a task that needs no more room. When the operator has filled the rest, services still have room.
func TestTasksLeaveRoom(t *testing.T) {
	f := newVariables(t)
	big := strings.Repeat("v", variables.MaxItems-1)
	tasks := func(job int) *variables.Service { return f.OfTask(ns, fmt.Sprint(job)) }
	operator := func(int) *variables.Service { return f.Service }
	fill := func(s func(job int) *variables.Service, name, value string) (stored int) {
		for ; ; stored++ {
			_, _, err := s(stored/50).Put(t.Context(), variable(fmt.Sprintf("%s/%d", name, stored), "k", value), nil)
			if errors.Is(err, variables.ErrFull) {
				return stored
			}
			must.OK(t, err)
		}
	}
	if got, of := fill(tasks, "task", big), variables.MaxBytes/variables.MaxItems; got < of*7/10 || got > of*3/4 {
		t.Errorf("tasks have written %d of %d variables of the largest size", got, of)
	}
	if _, _, err := tasks(-1).Acquire(t.Context(), variable("lock", "k", big)); !errors.Is(err, variables.ErrFull) ||
		!strings.Contains(err.Error(), "24 MiB, and the rest is the operator's") {
		t.Errorf("a task's lock: %v", err)
	}
	for path, value := range map[string]string{"task/0": big, "task/1": "small"} {
		same.Error(t, nil, same.Err2(tasks(0).Put(t.Context(), variable(path, "k", value), nil)), "written again")
	}
	if got, of := fill(operator, "operator", big), variables.MaxBytes/variables.MaxItems; got < of/5 {
		t.Errorf("the operator has written %d of %d variables of the largest size", got, of)
	}
	registrations := cluster.Txn{}
	for n := range 8 { // as much as a transaction may have
		registrations.Then = append(registrations.Then,
			cluster.Operation{Key: fmt.Sprintf("services/default/web/%d", n),
				Value: bytes.Repeat([]byte("v"), cluster.MaxValueBytes)})
	}
	for range 2 {
		same.Error(t, nil, same.Err(f.store.Commit(t.Context(), registrations)), "services")
	}
	for count, want := range map[int][2]bool{7499: {true, true}, 7500: {false, true}, 9999: {false, true},
		10_000: {false, false}} {
		for i, s := range []*variables.Service{tasks(-1), f.Service} {
			f.plant("usage/vars", fmt.Appendf(nil, `{"variables":%d,"bytes":0}`, count))
			_, _, err := s.Put(t.Context(), variable(fmt.Sprintf("number/%d/%d", count, i), "k", "v"), nil)
			if (err == nil) != want[i] || err != nil && !errors.Is(err, variables.ErrFull) {
				t.Errorf("after %d variables, OfTask %v: %v", count, i == 0, err)
			}
		}
	}
}

// TestShareOfAJob: the tasks of one job can't take the room of all tasks, wherever they write. A variable that others
// delete or write over no longer counts against their share. A damaged count is counted again.
func TestShareOfAJob(t *testing.T) {
	f := newVariables(t)
	greedy, other := f.OfTask(ns, "greedy"), f.OfTask(ns, "other")
	big := strings.Repeat("v", variables.MaxItems-1)
	put := func(s *variables.Service, path, value string) error {
		_, _, err := s.Put(t.Context(), variable(path, "k", value), nil)
		return err
	}
	stored := 0
	for ; put(greedy, fmt.Sprintf("shared/%d", stored), big) == nil; stored++ {
	}
	if most := variables.MaxBytes / 8 / variables.MaxItems; stored > most || stored < most*9/10 {
		t.Errorf("a job has written %d variables of the largest size, want about %d", stored, most)
	}
	err := put(greedy, "nomad/jobs/other", big)
	same.Says(t, variables.ErrFull, "1250 variables and 4 MiB, which is the share of a job", err, "at another job's path")
	for _, s := range []*variables.Service{other, f.Service} {
		same.Error(t, nil, put(s, "nomad/jobs/other", big), "another writer")
	}
	for i, c := range []struct {
		name string
		do   func() error
		full bool
	}{
		{"another locks it only", func() error {
			_, _, err := other.Acquire(t.Context(), variable("shared/5"))
			return err
		}, true},
		{"its own is smaller", func() error { return put(greedy, "shared/0", "small") }, false},
		{"another writes over", func() error { return put(other, "shared/1", big) }, false},
		{"the operator does", func() error { return put(f.Service, "shared/2", big) }, false},
		{"the operator deletes", func() error { _, err := f.Delete(t.Context(), ns, "shared/3", nil); return err },
			false},
		{"the count is damaged", func() error {
			f.plant(variables.UsageKey(ns, "greedy"), []byte("?"))
			return put(greedy, "shared/4", "small")
		}, false},
	} {
		same.Error(t, nil, c.do(), c.name)
		err := put(greedy, fmt.Sprintf("more/%d", i), big[:60_000]) // each makes room for that
		if errors.Is(err, variables.ErrFull) != c.full || err != nil && !c.full {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for n := range 1250 {
		_ = put(other, fmt.Sprintf("small/%d", n), "v")
	}
	if err := put(other, "one/more", "v"); !errors.Is(err, variables.ErrFull) {
		t.Errorf("after 1,250 variables: %v, want no more", err)
	}
}

// damagedStore is a store in which one value is damaged until it is written again.
type damagedStore struct {
	cluster.Store
	key   string
	index uint64 // of the damaged entry
}

func (s *damagedStore) damage(e *cluster.Entry) {
	if e.Key == s.key && e.ModifyIndex == s.index {
		e.Value, e.Damaged = nil, true
	}
}

func (s *damagedStore) Get(ctx context.Context, key string) (cluster.Entry, uint64, error) {
	e, index, err := s.Store.Get(ctx, key)
	s.damage(&e)
	return e, index, err
}

func (s *damagedStore) List(ctx context.Context, span cluster.Span) (cluster.Page, error) {
	page, err := s.Store.List(ctx, span)
	for i := range page.Entries {
		s.damage(&page.Entries[i])
	}
	return page, err
}

// TestDamagedSize: the size of a damaged variable no longer counts once it is written again or deleted.
func TestDamagedSize(t *testing.T) {
	f := newVariables(t)
	f.put("good", "k", "v")
	store := &damagedStore{f.store, "vars/default/bad", f.put("bad", "k", strings.Repeat("v", 10<<10)).ModifyIndex}
	damaged := variables.New(variables.Config{Store: store, Sealer: newSealer(t)})
	if _, _, err := damaged.Put(t.Context(), variable("bad", "k", "v"), nil); err != nil {
		t.Fatal(err)
	}
	same.As(t, `{"variables":2,"bytes":2048}`, string(f.entry("usage/vars").Value), "written again")
	store.index = f.put("bad", "k", strings.Repeat("v", 10<<10)).ModifyIndex
	must.Get(damaged.Delete(t.Context(), ns, "bad", nil))(t)
	same.As(t, `{"variables":1,"bytes":1024}`, string(f.entry("usage/vars").Value), "deleted")
}
