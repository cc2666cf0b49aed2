package datadir_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"taskapi/allocrunner/datadir"
	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/internal/logfile"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// stickyAlloc returns an allocation of a group with sticky data, which was changed at that time.
func stickyAlloc(job string, sticky bool, changed int64) *api.Allocation {
	group := &api.TaskGroup{Name: new("g"), EphemeralDisk: &api.EphemeralDisk{Sticky: &sticky}}
	return &api.Allocation{ID: uuid.NewString(), Name: job + ".g[0]", Namespace: "default", JobID: job, TaskGroup: "g",
		ModifyTime: changed, Job: &api.Job{ID: &job, Name: &job, Type: new(api.JobTypeBatch), Region: new("global"),
			TaskGroups: []*api.TaskGroup{group}}}
}

// disk is a data directory and its store.
type disk struct {
	datadir.Dir
	store interfaces.Store
}

func newDisk(t *testing.T) disk {
	d := datadir.Dir(t.TempDir())
	must.OK(t, d.Make())
	return disk{d, d.Store("1.2.3")}
}

// lock locks an allocation, new or saved, with the state of a store.
func (d disk) lock(t *testing.T, alloc *api.Allocation, store interfaces.Store) *datadir.Lock {
	t.Helper()
	l := must.Get(d.Lock(alloc.ID, store, slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(func() { l.Close() })
	return l
}

// end saves that an allocation has ended, with a file of that content in its data.
func (d disk) end(t *testing.T, alloc *api.Allocation, content string) *datadir.Lock {
	t.Helper()
	l := d.lock(t, alloc, d.store)
	must.OK(t, l.State().Put(interfaces.Saved{Alloc: alloc, Terminal: true}))
	must.OK(t, os.MkdirAll(l.Dir+"/alloc/data", 0o700))
	if content != "" {
		must.OK(t, os.WriteFile(l.Dir+"/alloc/data/f", []byte(content), 0o600))
	}
	return l
}

// passed returns the content of the file that was passed to an allocation, empty for none.
func (d disk) passed(alloc *api.Allocation) string {
	text, _ := os.ReadFile(filepath.Join(d.Alloc(alloc.ID), ".sticky", "alloc", "f"))
	return string(text)
}

func (d disk) take(t *testing.T, l *datadir.Lock, alloc *api.Allocation) error {
	return d.TakeSticky(t.Context(), l, alloc, d.store, 0)
}

// TestTakeSticky: an allocation takes the latest sticky data of its name, and of no other one.
func TestTakeSticky(t *testing.T) {
	d := newDisk(t)
	child := stickyAlloc("web/periodic-1", true, 9)
	child.Job.ParentID = new("web")
	other := stickyAlloc("web", true, 9)
	other.Namespace = "other"
	latest := stickyAlloc("web", true, 3)
	for content, alloc := range map[string]*api.Allocation{
		"early": stickyAlloc("web", true, 1), "latest": latest, "": stickyAlloc("web", true, 8),
		"not sticky": stickyAlloc("web", false, 9), "other job": stickyAlloc("db", true, 9), "child": child,
		"other namespace": other,
	} {
		must.OK(t, d.end(t, alloc, content).Close())
	}
	for want, sticky := range map[string]bool{"": false, "latest": true} {
		alloc := stickyAlloc("web", sticky, 0)
		must.OK(t, d.take(t, d.lock(t, alloc, d.store), alloc))
		same.As(t, want, d.passed(alloc), "got data")
		if want != "" && alloc.PreviousAllocation != latest.ID {
			t.Errorf("the previous allocation is %q, want %s", alloc.PreviousAllocation, latest.ID)
		}
	}
}

// TestTakeStickyOfAnotherJob: dots make two jobs' allocations have one name, and their data stay apart.
func TestTakeStickyOfAnotherJob(t *testing.T) {
	d := newDisk(t)
	other := stickyAlloc("web", true, 1)
	other.Name, other.TaskGroup, other.Job.TaskGroups[0].Name = "web.g.g[0]", "g.g", new("g.g")
	must.OK(t, d.end(t, other, "data").Close())
	alloc := stickyAlloc("web.g", true, 0)
	must.OK(t, d.take(t, d.lock(t, alloc, d.store), alloc))
	if alloc.Name != other.Name || d.passed(alloc) != "" {
		t.Errorf("%s got data %q of %s", alloc.Name, d.passed(alloc), other.Name)
	}
}

// failing is a store whose states can't be written.
type failing struct{ interfaces.Store }

type failingState struct{ interfaces.OwnedState }

var errFull = errors.New("disk full")

func (s failing) Acquire(id string) (interfaces.OwnedState, error) {
	owned, err := s.Store.Acquire(id)
	return failingState{owned}, err
}

func (failingState) Put(interfaces.Saved) error { return errFull }

// TestTakeStickyAgain: data whose move was cut short go to the allocation that was saved, or to the next one; those of
// a start that failed go to the next one.
func TestTakeStickyAgain(t *testing.T) {
	d := newDisk(t)
	must.OK(t, d.end(t, stickyAlloc("web", true, 1), "data").Close())
	unsaved := stickyAlloc("web", true, 0)
	err := d.take(t, d.lock(t, unsaved, failing{d.store}), unsaved)
	if !errors.Is(err, errFull) || d.passed(unsaved) != "" {
		t.Fatalf("got %v, and data %q in an allocation that is not saved", err, d.passed(unsaved))
	}
	saved := stickyAlloc("web", true, 2) // killed before the data were passed
	l := d.lock(t, saved, d.store)
	must.OK(t, errors.Join(l.State().Put(interfaces.Saved{Alloc: saved}), l.Close()))
	l = d.lock(t, saved, d.store)
	must.OK(t, d.take(t, l, l.Saved().Alloc))
	if d.passed(saved) != "data" {
		t.Fatal("an allocation that is resumed has no data")
	}
	must.OK(t, d.take(t, l, l.Saved().Alloc)) // resumed once more, and ended before it has begun
	must.OK(t, errors.Join(l.State().Put(interfaces.Saved{Alloc: saved, Terminal: true}), l.Close()))
	next := stickyAlloc("web", true, 0)
	must.OK(t, d.take(t, d.lock(t, next, d.store), next))
	same.As(t, "data", d.passed(next), "after a start that failed, the next allocation has no data")
}

// TestTakeStickyWaits for the process of the ended allocation, which is about to exit.
func TestTakeStickyWaits(t *testing.T) {
	d := newDisk(t)
	ending, next := d.end(t, stickyAlloc("web", true, 1), "data"), stickyAlloc("web", true, 0)
	l := d.lock(t, next, d.store)
	if err := d.take(t, l, next); !errors.Is(err, interfaces.ErrStateInUse) || d.passed(next) != "" {
		t.Errorf("from an allocation that another process has: %v", err)
	}
	done := make(chan error)
	go func() { done <- d.TakeSticky(t.Context(), l, next, d.store, time.Minute) }()
	must.OK(t, ending.Close())
	must.OK(t, <-done)
	same.As(t, "data", d.passed(next), "the next allocation has no data")
}

// TestTakeStickyUnread: no allocation begins while another one may have its data, and nobody can read which they are.
func TestTakeStickyUnread(t *testing.T) {
	format := func(number uint32) []byte {
		return logfile.Format{Magic: "taskapi\x00", Number: number}.Header(make([]byte, 40))
	}
	for name, damage := range map[string]struct {
		header []byte
		job    string
		data   string
		want   error
	}{
		"damaged":              {make([]byte, 128), "web", "data", state.ErrDamaged},
		"damaged, another job": {make([]byte, 128), "db", "data", nil},
		"newer":                {format(99), "db", "data", state.ErrNewer},
		"newer, without data":  {format(99), "db", "", nil},
		"older":                {format(1), "db", "data", state.ErrOlder},
	} {
		d := newDisk(t)
		unread, next := stickyAlloc(damage.job, true, 1), stickyAlloc("web", true, 0)
		must.OK(t, d.end(t, unread, damage.data).Close())
		file := must.Get(os.OpenFile(d.State(unread.ID), os.O_WRONLY, 0))(t)
		must.Get(file.WriteAt(damage.header, 0))(t)
		must.OK(t, file.Close())
		err := d.take(t, d.lock(t, next, d.store), next)
		e, refused := errors.AsType[*datadir.UnreadError](err)
		if !errors.Is(err, damage.want) || refused != (damage.want != nil) || refused && e.ID != unread.ID {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestStickyLeft: sticky data that no allocation has taken are kept, also beside later ones, and not those of a child:
// its name has no next allocation.
func TestStickyLeft(t *testing.T) {
	d := newDisk(t)
	child := stickyAlloc("web/periodic-1", true, 1)
	child.Job.ParentID = new("web")
	early, latest, next := stickyAlloc("web", true, 1), stickyAlloc("web", true, 2), stickyAlloc("web", true, 3)
	for _, alloc := range []*api.Allocation{early, latest, child} {
		must.OK(t, d.end(t, alloc, "data").Close())
	}
	check := func(what string, alloc *api.Allocation, want bool) {
		t.Helper()
		if err := d.StickyLeft(alloc); errors.Is(err, interfaces.ErrSticky) != want {
			t.Errorf("%s: %v, want it kept: %v", what, err, want)
		}
	}
	check("early", early, true)
	check("latest", latest, true)
	check("child", child, false)
	must.OK(t, d.take(t, d.lock(t, next, d.store), next))
	check("early, beside one that has taken the latest data", early, true)
	check("latest, after its data were taken", latest, false)
}
