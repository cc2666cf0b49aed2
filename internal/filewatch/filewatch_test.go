package filewatch_test

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"taskapi/internal/filewatch"
	"taskapi/internal/must"
	"taskapi/internal/polltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func create(t *testing.T, path string) *os.File {
	t.Helper()
	f := must.Get(os.Create(path))(t)
	t.Cleanup(func() { f.Close() })
	return f
}

// wakes reports whether the watch is woken. It waits long only if it is not, and the test then fails.
func wakes(t *testing.T, w *filewatch.Watch, why string) {
	t.Helper()
	select {
	case <-w.Changed():
	case <-time.After(polltest.Deadline()):
		t.Fatalf("nobody was woken when %s", why)
	}
}

// TestFile: a change of an open file wakes all that watch it, also when the file has been renamed or removed.
func TestFile(t *testing.T) {
	var w filewatch.Watcher
	path := filepath.Join(t.TempDir(), "file")
	f := create(t, path)
	var watches []*filewatch.Watch
	for range 3 {
		one := must.Get(w.File(f))(t)
		defer one.Close()
		watches = append(watches, one)
	}
	for _, step := range []struct {
		why string
		do  func() error
	}{
		{"it was written to", func() error { _, err := f.WriteString("x"); return err }},
		{"it was truncated", func() error { return f.Truncate(0) }},
		{"it was renamed", func() error { return os.Rename(path, path+"2") }},
		{"it was written to under its new name", func() error { _, err := f.WriteString("x"); return err }},
		{"it was removed", func() error { return os.Remove(path + "2") }},
		{"it was written to after that", func() error { _, err := f.WriteString("x"); return err }},
	} {
		must.OK(t, step.do())
		for _, one := range watches {
			wakes(t, one, step.why)
		}
	}
}

// TestDir: a new name wakes.
func TestDir(t *testing.T) {
	var w filewatch.Watcher
	path := t.TempDir()
	dir := must.Get(os.Open(path))(t)
	defer dir.Close()
	one := must.Get(w.Dir(dir))(t)
	defer one.Close()
	create(t, filepath.Join(path, "file"))
	wakes(t, one, "a file was made in it")
	must.OK(t, os.Rename(filepath.Join(path, "file"), filepath.Join(path, "other")))
	wakes(t, one, "a file was renamed in it")
	must.OK(t, os.WriteFile(filepath.Join(path, "other"), []byte("x"), 0o600))
	wakes(t, one, "a file in it was written")
	must.OK(t, os.Rename(filepath.Join(path, "other"), filepath.Join(t.TempDir(), "other")))
	wakes(t, one, "a file was moved out of it")
	if other, err := w.Dir(create(t, filepath.Join(path, "plain"))); err == nil {
		other.Close()
		t.Error("a file was watched as a directory")
	}
}

// TestCloseAndWatchAgain: while watches are opened and closed at the same time, those that remain are woken.
func TestCloseAndWatchAgain(t *testing.T) {
	var w filewatch.Watcher
	f := create(t, filepath.Join(t.TempDir(), "file"))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				one, err := w.File(f)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := f.WriteString("x"); err != nil {
					t.Error(err)
				}
				wakes(t, one, "it was written to")
				one.Close()
			}
		})
	}
	all.Wait()
}
