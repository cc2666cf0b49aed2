package privatefile

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"taskapi/internal/must"
	"taskapi/internal/same"
)

func TestOwner(t *testing.T) {
	if err := checkOwner("f", 7, 7); err != nil {
		t.Errorf("own file: %v", err)
	}
	for _, owner := range []uint32{0, 8, 1<<32 - 1} {
		err := checkOwner("f", owner, 7)
		if !errors.Is(err, ErrExposed) || strings.Contains(err.Error(), "chown") { // only root can, and should not
			t.Errorf("file of uid %d, read by 7: %v, want ErrExposed", owner, err)
		}
	}
}

func TestReadTakesPrivateRegularFilesOnly(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	must.OK(t, Write(good, []byte("secret")))
	data, version, err := Read(good, 6)
	if err != nil || string(data) != "secret" {
		t.Fatalf("read %q, %v", data, err)
	}
	if again, err := Stat(good); err != nil || again != version {
		t.Errorf("version %v, %v, want the %v that was read", again, err, version)
	}
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	must.OK(t, errors.Join(os.Symlink(good, link), syscall.Mkfifo(fifo, 0o600)))
	for name, c := range map[string]struct {
		path  string
		limit int64
		want  error
	}{
		"missing": {dir + "/none", 6, fs.ErrNotExist}, "too long": {good, 5, ErrNotRegular}, "a link": {link, 6,
			ErrNotRegular},
		"a fifo": {fifo, 6, ErrNotRegular}, "a directory": {dir, 1 << 20, ErrNotRegular},
	} {
		if _, _, err := Read(c.path, c.limit); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	for mode := range fs.FileMode(0o100) {
		must.OK(t, os.Chmod(good, 0o600|mode))
		if _, _, err := Read(good, 6); errors.Is(err, ErrExposed) != (mode != 0) {
			t.Errorf("mode %o: %v", 0o600|mode, err)
		}
	}
}

func TestWriteMakesANewVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for range 2 {
		must.OK(t, Write(path, []byte("a")))
		before := must.Get(Stat(path))(t)
		// Held open, the old inode can't be used again.
		f := must.Get(os.Open(path))(t)
		must.OK(t, Write(path, []byte("b")))
		if after, err := Stat(path); err != nil || after == before {
			t.Errorf("version %v after a write, %v before, %v", after, before, err)
		}
		f.Close()
	}
}

// TestWriteRemovesLeftovers of the same file.
func TestWriteRemovesLeftovers(t *testing.T) {
	dir := t.TempDir()
	stays := map[string]bool{".a." + rand.Text(): false, ".b." + rand.Text(): true, ".a.b": true, "b": true}
	for name := range stays {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	must.OK(t, Write(filepath.Join(dir, "a"), nil))
	for name, want := range stays {
		if _, err := os.Lstat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s: %v; it is to stay: %v", name, err, want)
		}
	}
}

func TestCreateIsWonByOne(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	var won atomic.Int32
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			switch err := Create(path, bytes.Repeat([]byte{byte(i)}, 100)); {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, fs.ErrExist):
				t.Error(err)
			}
		})
	}
	all.Wait()
	data, _, err := Read(path, 100)
	if err != nil || won.Load() != 1 || len(bytes.Trim(data, string(data[:1]))) != 0 {
		t.Errorf("%d winners, %x, %v", won.Load(), data, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("directory holds %v, %v, want one file", entries, err)
	}
}

func TestLockExcludes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var inside, most atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 5 {
				lock, err := Acquire(path)
				if err != nil {
					t.Error(err)
					return
				}
				most.Store(max(most.Load(), inside.Add(1)))
				inside.Add(-1)
				if err := lock.Release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if most.Load() != 1 {
		t.Errorf("%d held the lock at once", most.Load())
	}
}

func TestLockHeldTooLong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	lock := must.Get(Acquire(path))(t)
	defer lock.Release()
	if _, err := acquire(path, 10*time.Millisecond); !errors.Is(err, ErrBusy) {
		t.Errorf("a second one: %v, want ErrBusy", err)
	}
}

func TestMarkOutlivesTheLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	for _, want := range []bool{false, true} {
		lock := must.Get(Acquire(path))(t)
		if got, err := lock.Marked(); got != want || err != nil {
			t.Errorf("marked: %v, %v, want %v", got, err, want)
		}
		must.OK(t, errors.Join(lock.Mark(), lock.Release()))
	}
}

// TestLog is emptied when it has grown too long, and not before; what is no file is written to.
func TestLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f := must.Get(Open(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND))(t)
	defer f.Close()
	var other strings.Builder
	for _, step := range []struct{ write, want string }{{"one\n", "one\n"}, {"two\n", "one\ntwo\n"},
		{"three\n", "three\n"}, {"four\n", "three\nfour\n"}} {
		for _, w := range []io.Writer{f, &other} {
			if _, err := (Log{w, 6}).Write([]byte(step.write)); err != nil {
				t.Error(err)
			}
		}
		if text, err := os.ReadFile(path); string(text) != step.want || err != nil {
			t.Errorf("after %q: %q, %v; want %q", step.write, text, err, step.want)
		}
	}
	same.As(t, "one\ntwo\nthree\nfour\n", other.String(), "no file")
}
