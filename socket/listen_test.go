package socket_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"taskapi/internal/must"
	"taskapi/socket"
)

// taskUID is a user other than root's in the tests; it needs no entry in passwd.
const taskUID = 64321

func newListener(t *testing.T, cfg socket.Config) *socket.Listener {
	t.Helper()
	if cfg.UID == 0 && cfg.GID == 0 {
		cfg.UID, cfg.GID = -1, -1
	}
	l := must.Get(socket.Listen(cfg))(t)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l
}

func listenErr(t *testing.T, cfg socket.Config) error {
	t.Helper()
	if cfg.UID == 0 && cfg.GID == 0 {
		cfg.UID, cfg.GID = -1, -1
	}
	l, err := socket.Listen(cfg)
	if err == nil {
		l.Close()
		t.Fatalf("Listen(%q) succeeded", cfg.Path)
	}
	return err
}

// roundTrip says one word each way.
func roundTrip(t *testing.T, l *socket.Listener, path string) {
	t.Helper()
	client := must.Get(socket.Dial(t.Context(), path))(t)
	defer client.Close()
	server := must.Get(l.Accept())(t)
	defer server.Close()
	for _, ends := range [][2]net.Conn{{client, server}, {server, client}} {
		must.Get(io.WriteString(ends[0], "word"))(t)
		got := make([]byte, 4)
		if _, err := io.ReadFull(ends[1], got); err != nil || string(got) != "word" {
			t.Fatalf("read %q, %v", got, err)
		}
	}
}

// names lists a directory, to see that nothing is left behind.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries := must.Get(os.ReadDir(dir))(t)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	return strings.Join(got, " ")
}

func TestListenAtAnyPath(t *testing.T) {
	long := strings.Repeat("d", 120)
	for name, rel := range map[string]string{
		"short":                      "api.sock",
		"space":                      "a dir/api.sock",
		"odd bytes":                  "%41#?&\n\xff'\"/soc ket",
		"250 bytes":                  long + "/" + long + "/api.sock",
		"beyond PATH_MAX":            strings.Repeat(long+"/", 40) + "api.sock",
		"longest name":               strings.Repeat("n", 255),
		"the name of a stale socket": ".dead",
		"looks abstract":             "@api",
		"name with colons":           "unix:api.sock",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), rel)
			if name == "beyond PATH_MAX" {
				mkdirDeep(t, path)
			} else if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			l := newListener(t, socket.Config{Path: path})
			if got := l.Addr().String(); got != path {
				t.Errorf("Addr() = %q, want %q", got, path)
			}
			if name == "beyond PATH_MAX" {
				return // no client can name it
			}
			roundTrip(t, l, path)
			if got := names(t, filepath.Dir(path)); got != filepath.Base(path) {
				t.Errorf("the directory holds %q, want the socket alone", got)
			}
			must.OK(t, l.Close())
			if got := names(t, filepath.Dir(path)); got != "" {
				t.Errorf("after Close the directory holds %q", got)
			}
			if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept after Close: %v, want net.ErrClosed", err)
			}
		})
	}
}

// mkdirDeep makes the parents of a path that is too long for mkdir(2).
func mkdirDeep(t *testing.T, path string) {
	t.Helper()
	root := must.Get(os.OpenRoot("/"))(t)
	for name := range strings.SplitSeq(filepath.Dir(path)[1:], "/") {
		if err := root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
		next, err := root.OpenRoot(name)
		root.Close()
		must.OK(t, err)
		root = next
	}
	root.Close()
}

func TestModeAndOwnerFromBirth(t *testing.T) {
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		uid, gid = taskUID, taskUID+1
	}
	old := syscall.Umask(0o022)
	t.Cleanup(func() { syscall.Umask(old) })
	for _, umask := range []int{0, 0o022, 0o077} {
		for _, mode := range []os.FileMode{0o600, 0o660, 0o666} {
			syscall.Umask(0o022)
			path := filepath.Join(t.TempDir(), "api.sock")
			syscall.Umask(umask)
			stop, seen := watchBirth(path)
			newListener(t, socket.Config{Path: path, Mode: mode, UID: uid, GID: gid})
			close(stop)
			want := birth{mode: mode | os.ModeSocket, uid: uint32(uid), gid: uint32(gid), dialable: true}
			for got := range seen {
				if got != want {
					t.Errorf("umask %#o: seen %+v, want only %+v", umask, got, want)
				}
			}
		}
	}
}

type birth struct {
	mode     os.FileMode
	uid, gid uint32
	dialable bool
}

// watchBirth looks at a path without a pause and sends every different state of it that it saw, at least one.
func watchBirth(path string) (stop chan struct{}, seen chan birth) {
	stop, seen = make(chan struct{}), make(chan birth)
	ready := make(chan struct{})
	started := sync.OnceFunc(func() { close(ready) })
	go func() {
		defer close(seen)
		states := map[birth]bool{}
		for stopped := false; ; {
			if info, err := os.Lstat(path); err == nil {
				st := info.Sys().(*syscall.Stat_t)
				c, err := net.Dial("unix", path)
				if err == nil {
					c.Close()
				}
				states[birth{info.Mode(), st.Uid, st.Gid, err == nil}] = true
			}
			if stopped {
				break
			}
			select {
			case <-stop:
				stopped = true
			default:
				started()
			}
		}
		for s := range states {
			seen <- s
		}
	}()
	<-ready
	return stop, seen
}

func TestListenRefusesBadArguments(t *testing.T) {
	dir := t.TempDir()
	for name, cfg := range map[string]socket.Config{
		"empty path":    {},
		"relative path": {Path: "api.sock"},
		"unclean path":  {Path: dir + "/../api.sock"},
		"slash at end":  {Path: dir + "/api.sock/"},
		"root":          {Path: "/"},
		"NUL":           {Path: dir + "/a\x00b"},
		"long name":     {Path: dir + "/" + strings.Repeat("n", 256)},
		"setuid mode":   {Path: dir + "/s", Mode: 0o600 | os.ModeSetuid},
		"negative cap":  {Path: dir + "/s", MaxConns: -1},
		"long refusal":  {Path: dir + "/s", Refusal: make([]byte, 4097)},
		"negative uid":  {Path: dir + "/s", UID: -2, GID: 1},
	} {
		t.Run(name, func(t *testing.T) {
			if err := listenErr(t, cfg); !errors.Is(err, socket.ErrInvalid) {
				t.Errorf("got %v, want ErrInvalid", err)
			}
		})
	}
	if err := listenErr(t, socket.Config{Path: dir + "/none/api.sock"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing directory: got %v, want fs.ErrNotExist", err)
	}
	must.OK(t, os.WriteFile(dir+"/file", nil, 0o600))
	if err := listenErr(t, socket.Config{Path: dir + "/file/api.sock"}); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("a file for a directory: got %v, want ENOTDIR", err)
	}
}

func TestPeerIsWhoConnected(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	l := newListener(t, socket.Config{Path: path})
	client := must.Get(socket.Dial(context.Background(), path))(t)
	defer client.Close()
	c := must.Get(l.Accept())(t)
	defer c.Close()
	want := socket.Peer{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), PID: int32(os.Getpid())}
	if got := c.(*socket.Conn).Peer(); got != want {
		t.Errorf("Peer() = %+v, want %+v", got, want)
	}
	if got := c.LocalAddr().String(); got != path {
		t.Errorf("LocalAddr() = %q, want %q", got, path)
	}
}
