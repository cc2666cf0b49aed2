package socket_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"golang.org/x/sys/unix"

	"taskapi/internal/must"
	"taskapi/socket"
)

func TestDialable(t *testing.T) {
	for path, want := range map[string]bool{
		"/run/taskapi/api.sock":         true,
		"/a-b_c.d~e+f,g:h=i@j/K9":       true,
		"/" + strings.Repeat("a", 106):  true,
		"/" + strings.Repeat("a", 107):  false,
		"":                              false,
		"relative/api.sock":             false,
		"/a b":                          false,
		"/a%20b":                        false,
		"/a#b":                          false,
		"/a?b":                          false,
		"/a\nb":                         false,
		"/ä":                            false,
		"/a\x7f":                        false,
		"/a[b]":                         false,
		"/$HOME/'quoted'":               false,
		"/a\\b":                         false,
		"/" + strings.Repeat("ä", 53):   false,
		"/C:/looks/like/a:drive":        true,
		"/tmp/x/allocs/1-2-3/t/secrets": true,
	} {
		if got := socket.Dialable(path); got != want {
			t.Errorf("Dialable(%q) = %v, want %v", path, got, want)
		}
	}
}

// What is Dialable comes out of a URL as it went in, escaped or not.
func TestDialableSurvivesAURL(t *testing.T) {
	dialable := 0
	for b := range 256 {
		path := "/a" + string([]byte{byte(b)}) + "z"
		if !socket.Dialable(path) {
			continue
		}
		dialable++
		u, err := url.Parse("unix://" + path)
		if err != nil || u.Path != path || u.EscapedPath() != path {
			t.Errorf("%q became %v, %v", path, u, err)
		}
	}
	if want := 62 + len("/-._~+,:=@"); dialable != want {
		t.Errorf("%d bytes are dialable, want %d", dialable, want)
	}
}

func TestRuntimeDirs(t *testing.T) {
	for _, tc := range []struct {
		uid  int
		xdg  string
		want []string
	}{
		{0, "/run/user/0", []string{"/run/taskapi", "/tmp/taskapi-0"}},
		{1000, "/run/user/1000", []string{"/run/user/1000/taskapi", "/tmp/taskapi-1000"}},
		{1000, "", []string{"/tmp/taskapi-1000"}},
		{1000, "relative", []string{"/tmp/taskapi-1000"}},
	} {
		if diff := cmp.Diff(tc.want, socket.RuntimeDirs(tc.uid, tc.xdg)); diff != "" {
			t.Errorf("RuntimeDirs(%d, %q):\n%s", tc.uid, tc.xdg, diff)
		}
	}
}

// newLongDir returns a directory that no ordinary client can dial in.
func newLongDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(newOpenDir(t), "a dir", strings.Repeat("d", 240))
	must.OK(t, os.MkdirAll(dir, 0o755))
	return dir
}

func TestShortLinkOfADialablePathIsThePath(t *testing.T) {
	addr, remove, err := socket.ShortLink(nil, "/run/x/api.sock")
	if err != nil || addr != "/run/x/api.sock" {
		t.Errorf("got %q, %v", addr, err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
}

func TestShortLinkCanBeDialled(t *testing.T) {
	run := filepath.Join(newOpenDir(t), "run")
	path := filepath.Join(newLongDir(t), "api.sock")
	addr, remove, err := socket.ShortLink([]string{run}, path)
	must.OK(t, err)
	if !socket.Dialable(addr) || filepath.Base(addr) != "api.sock" {
		t.Errorf("%q is not dialable", addr)
	}
	l := newListener(t, socket.Config{Path: path})
	c := must.Get(net.Dial("unix", addr))(t)
	c.Close()
	accepted := must.Get(l.Accept())(t)
	accepted.Close()
	if got := mustLstat(t, run).Mode(); got != os.ModeDir|0o711 {
		t.Errorf("the directory of links has mode %v, want 0711", got)
	}
	for range 2 {
		if err := remove(); err != nil {
			t.Error(err)
		}
	}
	if got := names(t, run); got != "" {
		t.Errorf("after remove: %q", got)
	}
	must.OK(t, os.RemoveAll(run))
	if err := remove(); err != nil {
		t.Errorf("remove with the directory gone: %v", err)
	}
}

func TestAnotherUserPassesAShortLink(t *testing.T) {
	needRoot(t)
	path := filepath.Join(newLongDir(t), "api.sock")
	addr, _, err := socket.ShortLink([]string{filepath.Join(newOpenDir(t), "run")}, path)
	must.OK(t, err)
	newListener(t, socket.Config{Path: path, UID: taskUID, GID: taskUID})
	if _, said := newRole(t, taskUID, "dial "+addr); said != wordConnected {
		t.Error(said)
	}
}

func TestShortLinkIsRenewed(t *testing.T) {
	dirs := []string{filepath.Join(newOpenDir(t), "run")}
	path := filepath.Join(newLongDir(t), "api.sock")
	first, removeFirst, err := socket.ShortLink(dirs, path)
	must.OK(t, err)
	// Whatever a dead run left under the name. The number of the first link is kept: another link, made at this very
	// moment, may get that of one that is gone.
	must.OK(t, os.Link(filepath.Dir(first), filepath.Join(filepath.Dir(dirs[0]), "kept")))
	must.OK(t, errors.Join(os.Remove(filepath.Dir(first)), os.Symlink("/etc", filepath.Dir(first))))
	second, removeSecond, err := socket.ShortLink(dirs, path)
	if err != nil || first != second {
		t.Fatalf("got %q, %v, want %q", second, err, first)
	}
	if err := removeFirst(); err != nil {
		t.Error(err)
	}
	if got, err := os.Readlink(filepath.Dir(second)); err != nil || got != filepath.Dir(path) {
		t.Errorf("the link leads to %q, %v, want %q", got, err, filepath.Dir(path))
	}
	other, removeOther, err := socket.ShortLink(dirs, filepath.Join(filepath.Dir(path), "b.sock"))
	if err != nil || filepath.Dir(other) == filepath.Dir(first) {
		t.Errorf("another socket got %q, %v", other, err)
	}
	if err := errors.Join(removeSecond(), removeOther()); err != nil {
		t.Error(err)
	}
}

func TestShortLinkSweepsDeadLinks(t *testing.T) {
	dir := filepath.Join(newOpenDir(t), "run")
	gone := newLongDir(t)
	if _, _, err := socket.ShortLink([]string{dir}, gone+"/api.sock"); err != nil {
		t.Fatal(err)
	}
	must.OK(t, os.Remove(gone))
	addr, _, err := socket.ShortLink([]string{dir}, newLongDir(t)+"/api.sock")
	must.OK(t, err)
	if got := names(t, dir); got != filepath.Base(filepath.Dir(addr)) {
		t.Errorf("the directory holds %q, want the one living link", got)
	}
}

func TestShortLinkRefuses(t *testing.T) {
	path := filepath.Join(newLongDir(t), "api.sock")
	base := newOpenDir(t)
	must.OK(t, errors.Join(
		os.WriteFile(base+"/file", nil, 0o600),
		os.Symlink("/etc", base+"/link"),
		os.Mkdir(base+"/open", 0o700), os.Chmod(base+"/open", 0o777),
	))
	for name, tc := range map[string]struct {
		dir  string
		want error
	}{
		"a file":             {base + "/file", socket.ErrUnsafe},
		"a symbolic link":    {base + "/link", socket.ErrUnsafe},
		"open to all":        {base + "/open", socket.ErrUnsafe},
		"in an open one":     {base + "/open/run", socket.ErrUnsafe},
		"no parent":          {base + "/none/run", fs.ErrNotExist},
		"not dialable":       {base + "/a b", socket.ErrUndialable},
		"long itself":        {base + "/" + strings.Repeat("l", 100), socket.ErrUndialable},
		"no directory given": {"", socket.ErrUndialable},
	} {
		t.Run(name, func(t *testing.T) {
			_, remove, err := socket.ShortLink([]string{tc.dir}, path)
			if !errors.Is(err, socket.ErrUndialable) || !errors.Is(err, tc.want) {
				t.Errorf("got %v, want ErrUndialable for %v", err, tc.want)
			}
			if err := remove(); err != nil {
				t.Error(err)
			}
			// The next directory is taken.
			if _, remove, err := socket.ShortLink([]string{tc.dir, base + "/good"}, path); err != nil {
				t.Error(err)
			} else if err := remove(); err != nil {
				t.Error(err)
			}
		})
	}
	if _, _, err := socket.ShortLink([]string{base + "/good"}, "relative"); !errors.Is(err, socket.ErrInvalid) {
		t.Errorf("a relative path: %v, want ErrInvalid", err)
	}
	if _, _, err := socket.ShortLink([]string{base + "/good"}, base+"/no dir/api.sock"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing directory: %v, want fs.ErrNotExist", err)
	}
	if _, _, err := socket.ShortLink([]string{base + "/good"}, filepath.Dir(path)+"/a b"); !errors.Is(err,
		socket.ErrUndialable) {
		t.Errorf("a file name that can't be dialled: %v, want ErrUndialable", err)
	}
}

// TestLinkDirectoryTakenByAnother: a user who makes the well-known name in /tmp first prevents no address.
func TestLinkDirectoryTakenByAnother(t *testing.T) {
	path := filepath.Join(newLongDir(t), "api.sock")
	base := newOpenDir(t)
	must.OK(t, errors.Join(os.Chmod(base, 0o777|os.ModeSticky), os.WriteFile(base+"/run", nil, 0o600)))
	if os.Geteuid() == 0 {
		must.OK(t, errors.Join(os.Remove(base+"/run"), os.Mkdir(base+"/run", 0o755), os.Lchown(base+"/run", taskUID, taskUID),
			os.Mkdir(base+"/run-theirs", 0o755), os.Lchown(base+"/run-theirs", taskUID, taskUID)))
	}
	addr, _, err := socket.ShortLink([]string{base + "/run"}, path)
	must.OK(t, err)
	again, remove, err := socket.ShortLink([]string{base + "/run"}, path)
	if again != addr || err != nil {
		t.Errorf("then %q, %v; before %q", again, err, addr)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Dir(filepath.Dir(addr)), &st); err != nil || int(st.Uid) != os.Geteuid() ||
		st.Mode&0o7777 != 0o711 {
		t.Errorf("%s: uid %d, mode %o, %v", addr, st.Uid, st.Mode, err)
	}
	l := newListener(t, socket.Config{Path: path})
	roundTrip(t, l, addr)
	if err := remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Dir(addr)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the link is left: %v", err)
	}
}

func TestDialRefuses(t *testing.T) {
	long := newLongDir(t)
	for path, want := range map[string]error{
		"relative":          socket.ErrInvalid,
		long + "/none.sock": fs.ErrNotExist,
		"/none.sock":        fs.ErrNotExist,
	} {
		if c, err := socket.Dial(context.Background(), path); !errors.Is(err, want) {
			t.Errorf("Dial(%q) = %v, %v, want %v", path, c, err, want)
		}
	}
}
