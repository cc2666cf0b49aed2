package datadir_test

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/state"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

const testID = "115ef685-6b9e-3eaf-e74b-6b04f094ebca"

// stores returns stores that an allocation's lock works with.
func stores(t *testing.T, d datadir.Dir) map[string]interfaces.Store {
	elsewhere := t.TempDir()
	return map[string]interfaces.Store{
		"its files": d.Store("1.2.3"),
		"elsewhere": state.Store{Path: func(id string) string { return filepath.Join(elsewhere, id) }},
	}
}

func lock(t *testing.T, d datadir.Dir, s interfaces.Store) *datadir.Lock {
	t.Helper()
	return must.Get(d.Lock(testID, s, slog.New(slog.DiscardHandler)))(t)
}

// nextOf returns the allocation with another job of these tasks.
func nextOf(tasks ...*api.Task) *api.Allocation {
	return &api.Allocation{ID: testID, TaskGroup: "g", Job: &api.Job{ID: new("next"),
		TaskGroups: []*api.TaskGroup{{Name: new("g"), Tasks: tasks}}}}
}

// TestLock: one process has the lock, and keeps it while it recreates an allocation.
func TestLock(t *testing.T) {
	d := datadir.Dir(t.TempDir())
	for name, store := range stores(t, d) {
		t.Run(name, func(t *testing.T) { testLock(t, d, store) })
	}
}

// TestLockOfALink: a state that is a link into a missing directory, such as one that is not mounted, is an error and no
// wait.
func TestLockOfALink(t *testing.T) {
	d := datadir.Dir(t.TempDir())
	must.OK(t, os.MkdirAll(d.Alloc(testID), 0o700))
	must.OK(t, os.Symlink(filepath.Join(t.TempDir(), "gone", "state.db"), d.State(testID)))
	same.Error(t, fs.ErrNotExist, same.Err(d.Lock(testID, d.Store("1.2.3"), slog.New(slog.DiscardHandler))))
}

func testLock(t *testing.T, d datadir.Dir, store interfaces.Store) {
	l := lock(t, d, store)
	must.OK(t, l.State().Put(interfaces.Saved{Alloc: &api.Allocation{ID: testID},
		Terminal: true}))
	must.OK(t, errors.Join(l.TryRecreate(), l.Recreate(nextOf(), true)))
	if _, err := d.Lock(testID, store, slog.New(slog.DiscardHandler)); !errors.Is(err, interfaces.ErrStateInUse) {
		t.Errorf("a second lock: %v, want ErrStateInUse", err)
	}
	must.OK(t, l.Close())
	again := lock(t, d, store)
	if s := again.Saved(); s.Terminal || *s.Alloc.Job.ID != "next" ||
		s.Alloc.ClientStatus != api.AllocClientStatusPending {
		t.Fatalf("got %+v; want the next one, about to begin", s)
	}
	must.OK(t, again.Close())
}

// TestStateOfAnotherAllocation: the state of another allocation is refused, since somebody has copied a directory.
func TestStateOfAnotherAllocation(t *testing.T) {
	d := datadir.Dir(t.TempDir())
	l := lock(t, d, d.Store(""))
	must.OK(t, errors.Join(l.State().Put(interfaces.Saved{Alloc: &api.Allocation{ID: "x"}}),
		l.Close()))
	_, lockErr := d.Lock(testID, d.Store(""), slog.New(slog.DiscardHandler))
	_, savedErr := d.Saved(testID)
	for what, err := range map[string]error{"lock": lockErr, "saved": savedErr} {
		same.Says(t, nil, `it is of allocation "x"`, err, what)
	}
}

// TestPeek: an allocation whose state is still empty has none.
func TestPeek(t *testing.T) {
	d := datadir.Dir(t.TempDir())
	l := lock(t, d, d.Store(""))
	defer l.Close()
	if saved, err := d.Peek(testID); saved != nil || err != nil {
		t.Errorf("got %+v, %v; want nothing", saved, err)
	}
}

// TestLockExisting: who wants an allocation that another process removes at that moment does not make it again.
func TestLockExisting(t *testing.T) {
	d := datadir.Dir(t.TempDir())
	for range 3 {
		l := lock(t, d, d.Store(""))
		must.OK(t, l.State().Put(interfaces.Saved{Alloc: &api.Allocation{ID: testID}, Terminal: true}))
		locked := make(chan error)
		go func() { // while it waits for the lock, or before, or after
			err := interfaces.ErrStateInUse
			for errors.Is(err, interfaces.ErrStateInUse) {
				_, err = d.LockExisting(testID, d.Store(""), slog.New(slog.DiscardHandler))
			}
			locked <- err
		}()
		must.OK(t, errors.Join(allocdir.Remove(l.Dir), l.Close()))
		err := <-locked
		if _, removed := errors.AsType[*datadir.RemovedError](err); !removed {
			t.Fatalf("got %v, want a RemovedError", err)
		}
		if left := must.Get(d.IDs())(t); len(left) > 0 {
			t.Fatalf("it is there again: %q", left)
		}
	}
}

// TestUnbegun: an allocation of which there is no more than an empty state is left over, unless somebody begins it.
func TestUnbegun(t *testing.T) {
	d := datadir.Dir(t.TempDir())
	want := func(want ...string) {
		t.Helper()
		if got := must.Get(d.Unbegun())(t); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	must.OK(t, os.MkdirAll(d.Alloc(testID), 0o700))
	want()
	l := lock(t, d, d.Store(""))
	want()
	must.OK(t, l.Close())
	want(testID)
	must.OK(t, os.Mkdir(filepath.Join(l.Dir, "alloc"), 0o700))
	want()
	must.OK(t, os.Remove(filepath.Join(l.Dir, "alloc")))
	l = lock(t, d, d.Store(""))
	must.OK(t, errors.Join(l.State().Put(interfaces.Saved{Alloc: &api.Allocation{ID: testID}}), l.Close()))
	want()
}

// TestTasksStayStopped: tasks that were stopped stay so when another version of the job follows, also after a crash. A
// fresh version starts them, and so does one that follows an allocation that nothing was to follow.
func TestTasksStayStopped(t *testing.T) {
	next := nextOf(&api.Task{Name: "stopped", Driver: "raw_exec"}, &api.Task{Name: "runs", Driver: "raw_exec"},
		&api.Task{Name: "after", Driver: "raw_exec", Lifecycle: &api.TaskLifecycle{Hook: api.TaskLifecycleHookPoststop}})
	stopped := interfaces.SavedTask{Override: interfaces.ScheduleForcedPause}
	for _, of := range []struct{ replaced, fresh, stays bool }{{true, false, true}, {true, true, false}, {}} {
		d := datadir.Dir(t.TempDir())
		l := lock(t, d, d.Store(""))
		was := *next
		how := interfaces.StopRequest{}
		if of.replaced {
			how.ReplacedBy = next
		}
		how.Apply(&was)
		must.OK(t, l.State().Put(interfaces.Saved{Alloc: &was, Terminal: true,
			Tasks: map[string]interfaces.SavedTask{"stopped": stopped, "gone": stopped, "after": stopped, "runs": {}}}))
		must.OK(t, l.Recreate(next, of.fresh))
		for where, tasks := range map[string]map[string]interfaces.SavedTask{
			"now": l.Previous().Tasks, "after a crash": must.Get(d.Peek(testID))(t).Tasks} {
			stays := tasks["stopped"].Override == interfaces.ScheduleForcedPause
			_, had := tasks["gone"]
			if stays != of.stays || had || tasks["after"].Override != "" || tasks["runs"].Override != "" {
				t.Errorf("%+v, %s: got %+v", of, where, tasks)
			}
		}
		must.OK(t, l.Close())
	}
}

// TestUnused: an allocation is unused when its ID was drawn or nothing of it was found, until it begins again.
func TestUnused(t *testing.T) {
	d := datadir.Dir(t.TempDir())
	for name, take := range map[string]func(string, interfaces.Store, *slog.Logger) (*datadir.Lock, error){
		"given": d.Lock, "drawn": d.LockNew} {
		l := must.Get(take(testID, d.Store(""), slog.New(slog.DiscardHandler)))(t)
		if !l.Unused() {
			t.Errorf("%s: it is used", name)
		}
		if err := l.Recreate(nextOf(), true); err != nil || l.Unused() {
			t.Errorf("%s, begun again: unused: %v, %v", name, l.Unused(), err)
		}
		must.OK(t, errors.Join(l.Close(), os.RemoveAll(d.Alloc(testID))))
	}
}
