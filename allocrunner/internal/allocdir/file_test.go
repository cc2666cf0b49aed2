package allocdir_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func newTask(t *testing.T, user interfaces.User) interfaces.TaskDir {
	t.Helper()
	return must.Get(allocdir.BuildTask(newAlloc(t), "web", user))(t)
}

func write(dir interfaces.TaskDir, rel, data string, u interfaces.User) error {
	return allocdir.WriteHookFile(dir, u, interfaces.File{Path: rel, Data: []byte(data)})
}

func TestWriteFile(t *testing.T) {
	proctest.NeedRoot(t)
	dir := newTask(t, stranger)
	for _, rel := range []string{"secrets/nomad_token", "secrets/nomad_token", "local/deep/er/token",
		"./secrets/../token"} {
		content := "for " + rel
		must.OK(t, write(dir, rel, content, stranger))
		path := filepath.Join(dir.Dir, rel)
		same.As(t, content, string(must.Get(os.ReadFile(path))(t)), rel, " holds")
		same.As(t, (entry{"-rw-------", stranger.UID, stranger.GID}), stat(t, path), rel, " is")
	}
	if got, want := stat(t, dir.LocalDir+"/deep/er"), (entry{"drwxr-xr-x", stranger.UID, stranger.GID}); got != want {
		t.Errorf("a directory on the way is %v, want %v", got, want)
	}
	if left, _ := filepath.Glob(dir.SecretsDir + "/.*"); len(left) != 0 {
		t.Errorf("temporary files are left: %v", left)
	}
}

func TestWriteFileStaysInTheTaskDirectory(t *testing.T) {
	dir := newTask(t, self())
	for _, rel := range []string{"", ".", "..", "../x", "/etc/x", "secrets/../../x", "local/.."} {
		same.Error(t, allocdir.ErrOutside, write(dir, rel, "x", self()), "WriteHookFile(", rel, ")")
	}
}

func TestWriteFileFollowsNoLink(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim")
	must.OK(t, os.WriteFile(victim, []byte("intact"), 0o640))
	dir := newTask(t, self())
	token := filepath.Join(dir.SecretsDir, "token")
	must.OK(t, errors.Join(os.Symlink(victim, token),
		os.Symlink(filepath.Dir(victim), filepath.Join(dir.LocalDir, "out"))))
	same.Error(t, nil, write(dir, "secrets/token", "secret", self()), "over a link")
	same.As(t, "-rw-------", stat(t, token).Mode, "the link was not replaced")
	same.Error(t, allocdir.ErrLink, write(dir, "local/out/victim", "secret", self()), "through a link")
	must.OK(t, errors.Join(os.RemoveAll(dir.SecretsDir), os.Symlink(filepath.Dir(victim), dir.SecretsDir)))
	same.Error(t, allocdir.ErrLink, write(dir, "secrets/victim", "secret", self()), "secrets itself a link")
	if got, _ := os.ReadFile(victim); string(got) != "intact" {
		t.Errorf("the link's target holds %q", got)
	}
}

// exchange moves a file to another place and back, again and again, until the test ends.
func exchange(t *testing.T, one, other string) {
	t.Helper()
	var exchanging sync.WaitGroup
	done := make(chan struct{})
	exchanging.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				_ = errors.Join(os.Rename(one, other), os.Rename(other, one)) // either may fail
			}
		}
	})
	t.Cleanup(func() { close(done); exchanging.Wait() })
}

// TestWriteFileWhereATaskExchangesDirectories: a directory of another task, put in the place of one that is being made,
// keeps its owner.
func TestWriteFileWhereATaskExchangesDirectories(t *testing.T) {
	proctest.NeedRoot(t)
	dir := newTask(t, stranger)
	data := filepath.Join(dir.SharedDir, "data")
	others, place := filepath.Join(data, "others"), filepath.Join(data, "x")
	must.OK(t, errors.Join(os.Mkdir(others, 0o700), os.WriteFile(others+"/secret", nil, 0o644),
		os.Chown(others, 4242, 4242)))
	open := must.Get(os.Open(others))(t)
	defer open.Close()
	exchange(t, others, place)
	for i := range 1000 {
		err := allocdir.WriteHookFile(dir, stranger, interfaces.File{Path: "data/x/f", Shared: true, Data: []byte("f")})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if st := must.Get(open.Stat())(t).Sys().(*syscall.Stat_t); st.Uid != 4242 {
			t.Fatalf("after %d files, the other task's directory belongs to user %d", i+1, st.Uid)
		}
		_ = errors.Join(os.Remove(place+"/f"), os.Remove(place)) // not the other task's, which has a file
	}
}

// TestRemoveUnfinished: a task's link leads to no file of another task.
func TestRemoveUnfinished(t *testing.T) {
	dir := newTask(t, self())
	other := must.Get(allocdir.BuildTask(dir.AllocDir, "other", self()))(t)
	const name = "/.token.ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	left := []string{dir.AllocDir + name, other.SecretsDir + name}
	kept := []string{other.LocalDir + name, other.SecretsDir + "/token"}
	for _, path := range append(left, kept...) {
		must.OK(t, os.WriteFile(path, nil, 0o600))
	}
	must.OK(t, errors.Join(os.Remove(dir.SecretsDir), os.Symlink("../other/local", dir.SecretsDir)))
	allocdir.RemoveUnfinished(dir.AllocDir)
	for _, path := range left {
		same.Error(t, fs.ErrNotExist, same.Err(os.Lstat(path)), path, " is left")
	}
	for _, path := range kept {
		must.Get(os.Lstat(path))(t)
	}
}

// TestLinkWhereATaskExchangesFiles: another task's file, put in the place of a new link, keeps its owner.
func TestLinkWhereATaskExchangesFiles(t *testing.T) {
	proctest.NeedRoot(t)
	dir := newTask(t, stranger)
	others, place := filepath.Join(dir.SharedDir, "data", "secret"), filepath.Join(dir.Dir, "books")
	must.OK(t, errors.Join(os.WriteFile(others, nil, 0o600), os.Chown(others, 4242, 4242)))
	open := must.Get(os.Open(others))(t)
	defer open.Close()
	exchange(t, others, place)
	for i := range 5000 {
		_ = allocdir.Link(dir, "books", "/srv", stranger) // the other file may be in the way
		if st := must.Get(open.Stat())(t).Sys().(*syscall.Stat_t); st.Uid != 4242 {
			t.Fatalf("after %d links, the other task's file belongs to user %d", i+1, st.Uid)
		}
	}
}

func TestWriteFileInTheWay(t *testing.T) {
	dir := newTask(t, self())
	must.OK(t, errors.Join(os.Mkdir(dir.SecretsDir+"/token", 0o700), os.WriteFile(dir.LocalDir+
		"/file", nil, 0o600)))
	same.Says(t, nil, "secrets/token", write(dir, "secrets/token", "x", self()), "over a directory")
	same.Error(t, allocdir.ErrNotDirectory, write(dir, "local/file/x", "x", self()), "through a file")
	if left, _ := filepath.Glob(dir.SecretsDir + "/.*"); len(left) != 0 {
		t.Errorf("temporary files are left: %v", left)
	}
	long := "secrets/" + strings.Repeat("n", 255)
	same.Error(t, nil, write(dir, long, "x", self()), "a name as long as they may be")
}

// A reader sees, while the file is replaced, one of its contents, whole.
func TestWriteFileIsAtomic(t *testing.T) {
	dir := newTask(t, self())
	path := filepath.Join(dir.SecretsDir, "token")
	contents := []string{strings.Repeat("a", 1<<16), strings.Repeat("b", 1<<15)}
	must.OK(t, write(dir, "secrets/token", contents[0], self()))
	var writer sync.WaitGroup
	done := make(chan struct{})
	writer.Go(func() {
		defer close(done)
		for i := range 200 {
			if err := write(dir, "secrets/token", contents[i%2], self()); err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer writer.Wait()
	for {
		got, err := os.ReadFile(path)
		if err != nil || (string(got) != contents[0] && string(got) != contents[1]) {
			t.Fatalf("read %d bytes, %v", len(got), err)
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

func FuzzWriteFile(f *testing.F) {
	for _, s := range []string{"a", "../a", "a/../../b", "/", "a//b", "\x00", "a/\x00/b", strings.Repeat("d/", 50) + "x"} {
		f.Add(s)
	}
	top := f.TempDir()
	alloc := filepath.Join(top, "allocs", "x")
	must.OK(f, allocdir.BuildAlloc(alloc, allocdir.AnyUser, nil))
	dir := must.Get(allocdir.BuildTask(alloc, "web", self()))(f)
	f.Fuzz(func(t *testing.T, rel string) {
		if err := write(dir, rel, "x", self()); err == nil {
			if got, err := os.ReadFile(filepath.Join(dir.Dir, rel)); err != nil || string(got) != "x" {
				t.Errorf("WriteHookFile(%q) wrote, and %q, %v is there", rel, got, err)
			}
		}
		for path, want := range map[string]int{top: 1, alloc: 2} {
			if entries, err := os.ReadDir(path); err != nil || len(entries) != want {
				t.Fatalf("WriteHookFile(%q) left its directory: %v, %v", rel, entries, err)
			}
		}
	})
}
