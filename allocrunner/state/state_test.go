package state_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/state"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// scratch returns a directory, in memory if possible: these tests are not about the speed of a disk.
func scratch(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "state-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// statePath returns the path of a file that is not there yet, in a directory as in a data directory.
func statePath(t testing.TB) string {
	dir := filepath.Join(scratch(t), "115ef685")
	must.OK(t, os.Mkdir(dir, 0o700))
	return filepath.Join(dir, state.FileName)
}

// open opens a state, which the end of the test closes.
func open(t testing.TB, path string) *state.DB {
	t.Helper()
	db := must.Get(state.Open(path, "1.2.3"))(t)
	t.Cleanup(func() { db.Close() })
	return db
}

// job returns a job of a realistic size, some 30 KB.
func job(name string) *api.Job { return jobOf(name, 30<<10) }

// jobOf returns a job of a little more than size bytes.
func jobOf(name string, size int) *api.Job {
	group, text := "g", strings.Repeat("x", size)
	return &api.Job{ID: &name, TaskGroups: []*api.TaskGroup{{Name: &group, Tasks: []*api.Task{
		{Name: "t", Templates: []*api.Template{{EmbeddedTmpl: &text}}}, {Name: "u"}}}}}
}

func alloc(id string, index uint64) *api.Allocation {
	return &api.Allocation{ID: id, ClientStatus: "running", TaskGroup: "g", ModifyIndex: index}
}

func TestFileIsPrivate(t *testing.T) {
	path := statePath(t)
	put(t, open(t, path), interfaces.Saved{Alloc: alloc("a", 1)})
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want mode 0600", info, err)
	}
}

// TestJobIsWrittenOnce: a change writes the job only if it is another one.
func TestJobIsWrittenOnce(t *testing.T) {
	path := statePath(t)
	db := open(t, path)
	a := alloc("a", 1)
	a.Job = job("j")
	put(t, db, interfaces.Saved{Alloc: a})
	before := len(readFile(t, path))
	b := alloc("a", 2)
	b.Job = job("j") // another pointer, the same job
	put(t, db, interfaces.Saved{Alloc: b,
		Tasks: map[string]interfaces.SavedTask{"t": task("x")}})
	if grown := len(readFile(t, path)) - before; grown > 2000 {
		t.Errorf("a change beside the job has written %d bytes", grown)
	}
	b = alloc("a", 3)
	b.Job = job("k")
	put(t, db, interfaces.Saved{Alloc: b})
	if got := load(t, db).Alloc.Job; *got.ID != "k" {
		t.Errorf("job %q after a change of the job, want k", *got.ID)
	}
}

// TestUnchangedIsNotWritten: neither the owner nor the next one writes an unchanged value again.
func TestUnchangedIsNotWritten(t *testing.T) {
	path := statePath(t)
	c := interfaces.Saved{Alloc: alloc("a", 1),
		Tasks: map[string]interfaces.SavedTask{"t": task("x")}}
	db := open(t, path)
	put(t, db, c)
	once := len(readFile(t, path))
	put(t, db, c, c)
	db.Close()
	put(t, open(t, path), c)
	if got := len(readFile(t, path)); got != once {
		t.Errorf("the file has %d bytes, want the %d of one change", got, once)
	}
}

// TestFileStaysSmall: the file stays small, however often a task changes.
func TestFileStaysSmall(t *testing.T) {
	path := statePath(t)
	db := open(t, path)
	a := alloc("a", 1)
	a.Job = job("j")
	put(t, db, interfaces.Saved{Alloc: a, Life: "life"})
	var longest int64
	for i := range 3000 {
		put(t, db, interfaces.Saved{Tasks: map[string]interfaces.SavedTask{"t": task(strings.Repeat("x", i%1000))}})
		info := must.Get(os.Stat(path))(t)
		longest = max(longest, info.Size())
	}
	if longest > 160<<10 {
		t.Errorf("the file has had %d bytes", longest)
	}
	same.Error(t, state.ErrInUse, same.Err(state.Open(path, "")), "another owner")
	got := load(t, db)
	if *got.Alloc.Job.ID != "j" || got.Life != "life" || got.Tasks["t"].Phase != strings.Repeat("x", 999) {
		t.Errorf("something is lost: %s", asJSON(t, got))
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("beside the file lie %v", entries)
	}
}

// TestRecreateThatFails: a Recreate that fails leaves what was saved.
func TestRecreateThatFails(t *testing.T) {
	path := statePath(t)
	db := open(t, path)
	put(t, db, interfaces.Saved{Alloc: &api.Allocation{ID: "a", ModifyIndex: 7}, Terminal: true})
	must.OK(t, os.MkdirAll(filepath.Join(path+".new", "in the way"), 0o700))
	same.Error(t, state.ErrFile, db.TryRecreate(), "the try")
	job := "the next one"
	follows := interfaces.Saved{Alloc: &api.Allocation{ID: "a", ModifyIndex: 1, Job: &api.Job{ID: &job}}}
	same.Error(t, state.ErrFile, db.Recreate(follows))
	if s := load(t, db); !s.Terminal {
		t.Errorf("after that: %+v", s)
	}
	must.OK(t, os.RemoveAll(path+".new"))
	must.OK(t, db.TryRecreate())
	if s := load(t, db); !s.Terminal {
		t.Errorf("after a try: %+v", s)
	}
}

func TestOtherProcessesAreKeptOut(t *testing.T) {
	path := statePath(t)
	synctest.Test(t, func(t *testing.T) { keptOut(t, path) }) // who is kept out waits a moment
}

func keptOut(t *testing.T, path string) {
	open(t, path)
	same.Error(t, state.ErrInUse, same.Err(state.Open(path, "")), "second writer")
	same.Error(t, state.ErrInUse, same.Err(state.Read(path)), "reader beside a writer")
	same.Error(t, state.ErrInUse, same.Err(state.Repair(path, "", time.Now())), "repair beside a writer")
	same.Error(t, nil, same.Err(state.Inspect(path)), "a look beside a writer")
}

// TestReplacedFileIsNotTaken: a process that has waited for a file which was replaced meanwhile goes on with the new
// one.
func TestReplacedFileIsNotTaken(t *testing.T) {
	path := statePath(t)
	synctest.Test(t, func(t *testing.T) {
		old := open(t, path)
		got := make(chan error)
		go func() {
			_, err := state.Open(path, "")
			got <- err
		}()
		synctest.Wait() // it waits for the old one
		must.OK(t, os.Remove(path))
		open(t, path)
		old.Close()
		same.Error(t, state.ErrInUse, <-got)
	})
}

func TestChangesThatCannotBeKept(t *testing.T) {
	db := open(t, statePath(t))
	put(t, db, interfaces.Saved{Alloc: alloc("a", 1)})
	long := interfaces.Saved{Alloc: alloc("a", 2),
		Tasks: map[string]interfaces.SavedTask{strings.Repeat("t", 5000): {}}}
	if db.Put(long) == nil || db.Recreate(long) == nil {
		t.Error("no error")
	}
	if got := load(t, db); got.Alloc.ModifyIndex != 1 {
		t.Errorf("saved %+v", got)
	}
}

func TestClosed(t *testing.T) {
	db := open(t, statePath(t))
	db.Close()
	change := interfaces.Saved{Alloc: alloc("a", 1)}
	_, loadErr := db.Load()
	for name, err := range map[string]error{"put": db.Put(change), "load": loadErr, "recreate": db.Recreate(change),
		"try": db.TryRecreate()} {
		if !errors.Is(err, fs.ErrClosed) || !errors.Is(err, state.ErrFile) {
			t.Errorf("%s: %v, want fs.ErrClosed and ErrFile", name, err)
		}
	}
}

// newer returns a file of the next format. Only its header is known.
func newer() []byte {
	b := state.Header(state.HeaderSize)
	b[11], b[24], b[25], b[26], b[27], b[28] = 4, '9', '.', '1', 0, 0
	seal(b)
	return append(b, "whatever"...)
}

// olderFormat returns a file of the format before this one.
func olderFormat() []byte {
	b := newer()
	b[11] = 2
	seal(b)
	return b
}

func TestFilesThatAreRefused(t *testing.T) {
	write := func(data []byte) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			must.OK(t, os.WriteFile(path, data, 0o600))
		}
	}
	for name, tc := range map[string]struct {
		make func(*testing.T, string)
		want error
		says string
	}{
		"zeros":    {write(make([]byte, 8192)), state.ErrDamaged, "its header can't be read"},
		"text":     {write([]byte("hello\n")), state.ErrDamaged, "it has no header"},
		"newer":    {write(newer()), state.ErrNewer, "taskapi 9.1 wrote it in format 4, this one reads 3"},
		"older":    {write(olderFormat()), state.ErrOlder, "taskapi 9.1 wrote it in format 2"},
		"fifo":     {func(t *testing.T, path string) { _ = unix.Mkfifo(path, 0o600) }, state.ErrFile, "not a file"},
		"a folder": {func(t *testing.T, path string) { _ = os.Mkdir(path, 0o700) }, state.ErrFile, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := statePath(t)
			tc.make(t, path)
			_, openErr := state.Open(path, "")
			_, readErr := state.Read(path)
			for how, err := range map[string]error{"open": openErr, "read": readErr} {
				if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), path) ||
					!strings.Contains(err.Error(), tc.says) {
					t.Errorf("%s: got %v, want %v with the file's name and %q", how, err, tc.want, tc.says)
				}
			}
		})
	}
	same.Error(t, state.ErrNotFound, same.Err(state.Read(statePath(t))), "missing")
	if _, err := state.Open(filepath.Join(t.TempDir(), "none", "none"), ""); !errors.Is(err, state.ErrFile) ||
		!errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: got %v, want ErrFile", err)
	}
}

// TestEmptyFileIsNone: an empty file is no state. A crash before the first file was complete leaves one.
func TestEmptyFileIsNone(t *testing.T) {
	path := statePath(t)
	for _, name := range []string{path, path + ".new"} {
		must.OK(t, os.WriteFile(name, nil, 0o600))
	}
	_, readErr := state.Read(path)
	_, inspectErr := state.Inspect(path)
	_, repairErr := state.Repair(path, "", time.Now())
	for _, err := range []error{readErr, inspectErr, repairErr} {
		same.Error(t, state.ErrNotFound, err)
	}
	put(t, open(t, path), interfaces.Saved{Alloc: alloc("a", 1)})
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("beside the file lie %v", entries)
	}
}
