package allocdir_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"taskapi/allocrunner/internal/allocdir"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

// stickyTasks are the tasks of both allocations.
var stickyTasks = []string{"db", "web"}

// stickyPair returns the directory of an allocation that has ended, with a file in each part of its sticky data, and
// that of the next one, which has not begun.
func stickyPair(t *testing.T) (old, next string) {
	t.Helper()
	old = newAlloc(t)
	next = filepath.Join(filepath.Dir(old), "next")
	must.OK(t, os.Mkdir(next, 0o700))
	for _, task := range append(stickyTasks, "gone") {
		must.Get(allocdir.BuildTask(old, task, self()))(t)
	}
	for _, file := range []string{"alloc/data/d", "alloc/logs/l", "db/local/d", "web/local/w", "web/tmp/t", "gone/local/g",
		"users.json"} {
		must.OK(t, os.WriteFile(filepath.Join(old, file), nil, 0o600))
	}
	return old, next
}

// files returns the files below a directory that are no directories.
func files(t *testing.T, dir string) (all []string) {
	t.Helper()
	for path, e := range tree(t, dir) {
		if e.Mode[0] != 'd' {
			all = append(all, path)
		}
	}
	slices.Sort(all)
	return all
}

// moveSticky moves the sticky data as a start does.
func moveSticky(old, next string) error {
	if !allocdir.Built(next) {
		if err := allocdir.Gather(old, stickyTasks); err != nil {
			return err
		}
		if err := allocdir.Pass(old, next); err != nil {
			return err
		}
	}
	return allocdir.Spread(next, stickyTasks)
}

// TestStickyDataAfterAKill: a start that is killed before any step leaves the data to one allocation alone, and another
// start gets all of them, or the ended allocation when it begins again.
func TestStickyDataAfterAKill(t *testing.T) {
	left := []string{"alloc/logs/l", "gone/local/g", "web/tmp/t"}
	moved := []string{"alloc/data/d", "db/local/d", "users.json", "web/local/w"}
	all := append(slices.Clone(left), moved...)
	slices.Sort(all)
	for steps, killed := 0, true; killed; steps++ {
		old, next := stickyPair(t)
		restore := allocdir.KillAfter(steps)
		err := moveSticky(old, next)
		restore()
		if killed = errors.Is(err, allocdir.ErrKilled); !killed {
			must.OK(t, err)
			same.As(t, 9, steps, "steps: one for each of four parts on both sides, and one between")
		}
		switch got := len(files(t, next)); {
		case got != 0 && got != len(moved):
			t.Errorf("killed after %d steps, the next allocation has %d parts", steps, got)
		case got == 0: // the ended allocation has them
			must.OK(t, allocdir.Spread(old, stickyTasks))
			same.As(t, all, files(t, old), "killed after ", steps, " steps, it begins again")
		}
		must.OK(t, moveSticky(old, next))
		same.As(t, moved, files(t, next), "killed after ", steps, " steps, then moved")
		same.As(t, left, files(t, old), "killed after ", steps, " steps, what is left")
		must.OK(t, allocdir.BuildAlloc(next, allocdir.AnyUser, stickyTasks))
	}
}

// TestStickyDataOfOthers: what a task has put in the place of its directory, such as a link to the data of others, is
// not moved. Owners and modes stay.
func TestStickyDataOfOthers(t *testing.T) {
	old, next := stickyPair(t)
	victim := t.TempDir()
	must.OK(t, os.WriteFile(victim+"/secret", nil, 0o600))
	must.OK(t, errors.Join(os.RemoveAll(old+"/web/local"), os.Symlink(victim, old+"/web/local"),
		os.RemoveAll(old+"/db/local"), os.WriteFile(old+"/db/local", nil, 0o600), os.Chmod(old+"/alloc/data/d", 0o640)))
	want := stat(t, old+"/alloc/data/d")
	if os.Geteuid() == 0 {
		must.OK(t, os.Chown(old+"/alloc/data/d", int(stranger.UID), int(stranger.GID)))
		want.UID, want.GID = stranger.UID, stranger.GID
	}
	must.OK(t, moveSticky(old, next))
	same.As(t, []string{"alloc/data/d", "users.json"}, files(t, next), "moved")
	same.As(t, want, stat(t, next+"/alloc/data/d"), "the file is now")
	must.Get(os.Lstat(victim + "/secret"))(t)
}

// TestHasSticky: only files in alloc/data and in local directories are sticky data, wherever they are on their way.
func TestHasSticky(t *testing.T) {
	for file, want := range map[string]bool{
		"alloc/data/d": true, "web/local/w": true, ".sticky/web/w": true,
		"alloc/logs/l": false, "web/tmp/t": false, "users.json": false, ".sticky/users.json": false,
	} {
		dir := newAlloc(t)
		must.Get(allocdir.BuildTask(dir, "web", self()))(t)
		must.OK(t, os.MkdirAll(dir+"/.sticky/web", 0o700))
		must.OK(t, os.WriteFile(filepath.Join(dir, file), nil, 0o600))
		same.As(t, want, allocdir.HasSticky(dir), "with ", file)
	}
}
