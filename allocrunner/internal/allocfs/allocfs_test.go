package allocfs_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/allocrunner/internal/allocdir"
	"taskapi/allocrunner/internal/allocfs"
	"taskapi/allocrunner/internal/proctest"
	"taskapi/internal/must"
	"taskapi/internal/same"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The users of the tasks web and db: neither is ours, and neither needs an entry in the user database.
var (
	web = interfaces.User{Name: "web", UID: 54321, GID: 54321}
	db  = interfaces.User{Name: "db", UID: 54322, GID: 54322}
)

// secret is what nobody must read.
const secret = "the secret"

// newDir returns an allocation directory with the tasks web and db, of their users where we are root, and what taskapi
// keeps beside them.
func newDir(t *testing.T) string {
	t.Helper()
	top := must.ShortDir(t)
	dir := filepath.Join(top, "115ef685")
	must.OK(t, allocdir.BuildAlloc(dir, allocdir.AnyUser, nil))
	for _, user := range []interfaces.User{web, db} {
		task := user.Name
		if os.Getuid() != 0 {
			user = interfaces.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
		}
		paths := must.Get(allocdir.BuildTask(dir, task, user))(t)
		write(t, paths.SecretsDir+"/nomad_token", secret)
		write(t, paths.PrivateDir+"/key", secret)
		write(t, paths.LocalDir+"/file", "of "+task)
	}
	if err := errors.Join(allocdir.Close(dir), os.Chmod(top, 0o700)); err != nil { // nobody else gets here by path
		t.Fatal(err)
	}
	write(t, dir+"/operator.token", secret)
	write(t, dir+"/state.db", secret)
	write(t, top+"/outside", secret)
	write(t, dir+"/alloc/data/shared", "shared")
	return dir
}

func write(t *testing.T, path, content string) {
	t.Helper()
	must.OK(t, os.WriteFile(path, []byte(content), 0o644))
}

// of returns the files as a reader has them, nil for us.
func of(dir string, reader *interfaces.Reader) interfaces.Files {
	return allocfs.New(dir, []string{"web", "db"}).As(reader)
}

// cat returns a file's content.
func cat(files interfaces.Files, path string) (string, error) {
	frames, err := files.Open(path, interfaces.Span{})
	if err != nil {
		return "", err
	}
	defer frames.Close()
	return readAll(frames)
}

func readAll(frames interfaces.Frames) (string, error) {
	var all strings.Builder
	for {
		next, err := frames.Next(ended)
		if errors.Is(err, io.EOF) {
			return all.String(), nil
		}
		if err != nil {
			return all.String(), err
		}
		all.Write(next.Data)
	}
}

func TestList(t *testing.T) {
	dir := newDir(t)
	for path, want := range map[string][]string{
		"": {"alloc", "db", "web"}, "/": {"alloc", "db", "web"}, ".": {"alloc", "db", "web"}, "/web/..": {"alloc", "db",
			"web"},
		"web": {"local", "private", "secrets", "tmp"}, "/alloc": {"data", "logs", "tmp"}, "alloc//./data/": {"shared"},
	} {
		list, err := of(dir, nil).List(path, 4<<20)
		var got []string
		for _, f := range list {
			got = append(got, f.Name)
		}
		if !slices.Equal(got, want) || err != nil {
			t.Errorf("%q has %v, %v; want %v", path, got, err, want)
		}
	}
	list, err := of(dir, nil).List("web/local", 4<<20)
	if err != nil || len(list) != 1 || list[0].Size != 6 || list[0].FileMode != "-rw-r--r--" || list[0].IsDir ||
		list[0].ModTime.IsZero() {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := of(dir, nil).List("alloc/logs", 4<<20); list == nil || len(list) != 0 || err != nil {
		t.Errorf("an empty directory: %v, %v; want an empty list", list, err)
	}
}

func TestStat(t *testing.T) {
	dir := newDir(t)
	write(t, dir+"/web/local/page", "<html></html>")
	write(t, dir+"/web/local/x.json", "no JSON")
	write(t, dir+"/web/local/empty", "")
	must.OK(t, os.Symlink("page", dir+"/web/local/link"))
	for path, want := range map[string]string{
		"web/local/page": "page 13 -rw-r--r-- false text/html; charset=utf-8",
		"web/local/link": "page 13 -rw-r--r-- false text/html; charset=utf-8", "web/local/x.json": "x.json 7 -rw-r--r-- " +
			"false application/json",
		"web/local/empty": "empty 0 -rw-r--r-- false application/octet-stream", "alloc": "alloc SIZE dtrwxrwxrwx true " +
			"application/octet-stream",
		"web/secrets": "secrets SIZE drwx------ true application/octet-stream", "web/local/..": "web SIZE drwxr-xr-x true " +
			"application/octet-stream", "/": "/ SIZE drwx------ true application/octet-stream",
	} {
		info, err := of(dir, nil).Stat(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		want = strings.Replace(want, "SIZE", fmt.Sprint(info.Size), 1)
		if got := fmt.Sprint(info.Name, " ", info.Size, " ", info.FileMode, " ", info.IsDir, " ",
			info.ContentType); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
}

// refusals are paths, and why nobody gets what they lead to.
func refusals(dir string) map[string]error {
	return map[string]error{
		"operator.token": fs.ErrNotExist, "state.db": fs.ErrNotExist, "/alloc/../operator.token": fs.ErrNotExist,
		"nope":           fs.ErrNotExist,
		"web/local/nope": fs.ErrNotExist, "web/local/dangling": fs.ErrNotExist,

		"..": interfaces.ErrPathEscapes, "../outside": interfaces.ErrPathEscapes,
		"/../../etc/passwd":   interfaces.ErrPathEscapes,
		"alloc/../../outside": interfaces.ErrPathEscapes, "web/local/up": interfaces.ErrPathEscapes,
		"web/local/etc":        interfaces.ErrPathEscapes,
		"web/local/etc/passwd": interfaces.ErrPathEscapes, "web/local/absolute-up": interfaces.ErrPathEscapes,
		"web/local/sibling": interfaces.ErrPathEscapes, "web/local/proc": interfaces.ErrPathEscapes,

		"web/secrets/nomad_token": interfaces.ErrSecretFile, "web/secrets/nope": interfaces.ErrSecretFile,
		"web/./secrets//nomad_token": interfaces.ErrSecretFile, "alloc/../web/secrets/nomad_token": interfaces.ErrSecretFile,
		"web/local/token": interfaces.ErrSecretFile, "web/local/absolute-token": interfaces.ErrSecretFile,
		"web/local/secrets/nomad_token": interfaces.ErrSecretFile, "db/secrets/nomad_token": interfaces.ErrSecretFile,
		"web/private/key": interfaces.ErrPrivateFile, "web/local/key": interfaces.ErrPrivateFile,

		"web/local/loop": interfaces.ErrTooDeep, "web/local/file/x": interfaces.ErrNotDirectory,
		strings.Repeat("alloc/data/../../", 1000): interfaces.ErrTooDeep,
		"web/local/nul\x00":                       unix.EINVAL,
		"web/local/" + strings.Repeat("x", 300):   unix.ENAMETOOLONG,
	}
}

// TestRefusals: what is not the tasks' to show is not to be had, in any way and by any link.
func TestRefusals(t *testing.T) {
	dir := newDir(t)
	write(t, dir+"-sibling", secret)
	for name, target := range map[string]string{
		"dangling": "nowhere", "up": "../../../outside", "etc": "/etc", "absolute-up": dir + "/../outside", "sibling": dir +
			"-sibling",
		"proc": "/proc/self/root/etc/passwd", "token": "../secrets/nomad_token", "absolute-token": dir +
			"/web/secrets/nomad_token",
		"secrets": "../secrets", "key": "../../web/./private/key", "loop": "loop",
	} {
		must.OK(t, os.Symlink(target, dir+"/web/local/"+name))
	}
	files := of(dir, nil)
	for path, want := range refusals(dir) {
		_, listErr := files.List(path, 4<<20)
		_, statErr := files.Stat(path)
		_, openErr := cat(files, path)
		for kind, err := range map[string]error{"list": listErr, "stat": statErr, "open": openErr} {
			if !errors.Is(err, want) {
				t.Errorf("%s %.60q: %v, want %v", kind, path, err, want)
			}
			if err != nil && strings.Contains(err.Error(), filepath.Dir(dir)) && !strings.Contains(path, dir) {
				t.Errorf("%s %.60q: the error names a path of the host: %v", kind, path, err)
			}
		}
	}
	for _, path := range []string{"web/secrets", "web/private", "web/local/secrets"} {
		if list, err := files.List(path, 4<<20); err == nil {
			t.Errorf("%s was listed: %v", path, list)
		}
	}
	same.Error(t, interfaces.ErrIsDirectory, same.Err(cat(files, "web")), "a directory was opened")
	same.Error(t, interfaces.ErrNotDirectory, same.Err(files.List("web/local/file", 4<<20)), "a file was listed")
}

// TestLinksWithin are followed, also absolute ones as a task makes them of NOMAD_ALLOC_DIR.
func TestLinksWithin(t *testing.T) {
	dir := newDir(t)
	for name, target := range map[string]string{"a": "../../alloc/data/shared", "b": dir + "/alloc/data/shared", "c": "b",
		"d": dir + "/alloc/data"} {
		must.OK(t, os.Symlink(target, dir+"/web/local/"+name))
	}
	for _, path := range []string{"web/local/a", "web/local/b", "web/local/c", "web/local/d/shared",
		"web/local/d/../data/shared"} {
		if got, err := cat(of(dir, nil), path); got != "shared" || err != nil {
			t.Errorf("%s is %q, %v", path, got, err)
		}
	}
}

// TestOnlyRegularFilesAreOpened: nothing waits for a writer of a pipe, and no device does what an open makes it do.
func TestOnlyRegularFilesAreOpened(t *testing.T) {
	dir := newDir(t)
	must.OK(t, unix.Mkfifo(dir+"/web/local/pipe", 0o666))
	listener := must.Get(net.Listen("unix", dir+"/web/local/sock"))(t)
	defer listener.Close()
	names := map[string]string{"pipe": "prw-r--r--", "sock": "Srwxr-xr-x"}
	if err := unix.Mknod(dir+"/web/local/zero", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err == nil {
		names["zero"] = "Dcrw-r--r--"
	}
	for name, mode := range names {
		same.Error(t, interfaces.ErrNotRegular, same.Err(cat(of(dir, nil), "web/local/"+name)), name, " was opened")
		if info, err := of(dir, nil).Stat("web/local/" + name); err != nil || info.FileMode != mode ||
			info.ContentType != "application/octet-stream" {
			t.Errorf("%s is %+v, %v; want %s", name, info, err, mode)
		}
	}
}

// TestExchangedDirectory: a task that exchanges a directory for a link all the time gets nobody to read behind the
// link.
func TestExchangedDirectory(t *testing.T) {
	dir := newDir(t)
	outside := filepath.Dir(dir)
	write(t, outside+"/file", secret)
	must.OK(t, errors.Join(os.Mkdir(dir+"/web/local/d", 0o755), os.Symlink(outside, dir+"/web/local/l"),
		os.Symlink("../secrets", dir+"/web/local/s")))
	write(t, dir+"/web/local/d/file", "plain")
	var stop atomic.Bool
	var exchanging sync.WaitGroup
	defer exchanging.Wait()
	defer stop.Store(true)
	exchanging.Go(func() {
		for !stop.Load() {
			for _, other := range []string{"l", "s"} {
				for range 2 {
					if err := unix.Renameat2(unix.AT_FDCWD, dir+"/web/local/d", unix.AT_FDCWD, dir+"/web/local/"+
						other, unix.RENAME_EXCHANGE); err != nil {
						t.Error(err)
						return
					}
				}
				runtime.Gosched()
			}
		}
	})
	seen := map[string]int{}
	for range 20_000 {
		for _, path := range []string{"web/local/d/file", "web/local/d/nomad_token"} {
			got, err := cat(of(dir, nil), path)
			if got == secret {
				t.Fatalf("%s was read behind the link", path)
			}
			seen[fmt.Sprint(got, err)]++
		}
	}
	t.Log(seen)
	if seen["plain<nil>"] == 0 || len(seen) < 3 {
		t.Errorf("nothing was exchanged meanwhile: %v", seen)
	}
}

// TestRights: a task reads through us what its user may read, and we lose none of our own rights by it.
func TestRights(t *testing.T) {
	proctest.NeedRoot(t)
	dir := newDir(t)
	for path, c := range map[string]struct {
		user interfaces.User
		mode os.FileMode
	}{
		"/alloc/data/of-web": {web, 0o600}, "/alloc/data/of-db": {db, 0o600}, "/alloc/data/of-root": {interfaces.User{},
			0o600},
		"/db/local/group": {db, 0o640}, "/alloc/data/web-group": {interfaces.User{GID: web.GID}, 0o640},
	} {
		write(t, dir+path, "content")
		must.OK(t, errors.Join(os.Chown(dir+path, int(c.user.UID), int(c.user.GID)), os.Chmod(dir+path, c.mode)))
	}
	must.OK(t, errors.Join(os.Mkdir(dir+"/db/local/closed", 0o700), os.Chown(dir+"/db/local/closed", int(db.UID),
		int(db.GID))))
	write(t, dir+"/db/local/closed/file", "content")
	asWeb := of(dir, &interfaces.Reader{UID: web.UID, GID: web.GID})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 50 {
				for path, allowed := range map[string]bool{
					"alloc/data/of-web": true, "alloc/data/of-db": false, "alloc/data/of-root": false, "db/local/group": false,
					"alloc/data/web-group": true, "db/local/file": true, "db/local/closed/file": false, "web/local/file": true,
				} {
					if _, err := cat(asWeb, path); (err == nil) != allowed || err != nil && !errors.Is(err, fs.ErrPermission) {
						t.Errorf("web reads %s: %v, want %v", path, err, allowed)
					}
					same.Error(t, nil, same.Err(cat(of(dir, nil), path)), "we read ", path)
				}
			}
		})
	}
	all.Wait()
	same.Error(t, fs.ErrPermission, same.Err(asWeb.List("db/local/closed", 4<<20)), "web lists another's closed directory")
	if _, err := asWeb.Stat("db/local/closed/file"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("web looks into another's closed directory: %v", err)
	}
	for _, path := range []string{"", "alloc", "db", "db/local"} {
		same.Error(t, nil, same.Err(asWeb.List(path, 4<<20)), "web lists ", path)
	}
	if _, err := asWeb.Open("web/secrets/nomad_token", interfaces.Span{}); !errors.Is(err, interfaces.ErrSecretFile) {
		t.Errorf("its own secret: %v, want it refused all the same", err)
	}
}

// TestTooManyEntries: a directory is not listed whatever its size.
func TestTooManyEntries(t *testing.T) {
	dir := newDir(t)
	for i := range 21_000 {
		must.OK(t, os.Symlink("x", fmt.Sprintf("%s/alloc/data/%d", dir, i)))
	}
	if list, err := of(dir, nil).List("alloc/data", 4<<20); !errors.Is(err, interfaces.ErrTooManyEntries) {
		t.Errorf("%d entries, %v", len(list), err)
	}
	for i := range 10_000 { // of the longest names
		must.OK(t, os.Symlink("x", fmt.Sprintf("%s/alloc/tmp/%0255d", dir, i)))
	}
	if list, err := of(dir, nil).List("alloc/tmp", 4<<20); !errors.Is(err, interfaces.ErrTooManyEntries) {
		t.Errorf("%d entries with long names, %v", len(list), err)
	}
}

// TestHugeFile: a sparse file of a terabyte takes no more memory than any other.
func TestHugeFile(t *testing.T) {
	dir := newDir(t)
	write(t, dir+"/alloc/data/huge", "begin")
	const size = 1 << 40
	if err := os.Truncate(dir+"/alloc/data/huge", size); err != nil {
		t.Skip("the file system has no files of that size:", err)
	}
	frames := must.Get(of(dir, nil).Open("alloc/data/huge", interfaces.Span{}))(t)
	defer frames.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 1000 {
		if next, err := frames.Next(ended); err != nil || len(next.Data) != 64<<10 {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("64 MB took %d bytes of memory", got)
	}
	for offset, want := range map[int64]int{size - 5: 5, size: 0, size + 5: 0, 1<<63 - 1: 0} {
		frames := must.Get(of(dir, nil).Open("alloc/data/huge", interfaces.Span{Offset: offset}))(t)
		if got, err := readAll(frames); len(got) != want || err != nil {
			t.Errorf("from %d: %d bytes, %v; want %d", offset, len(got), err, want)
		}
		frames.Close()
	}
}
