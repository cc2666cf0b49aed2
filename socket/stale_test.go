package socket_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"taskapi/internal/must"
	"taskapi/socket"
)

// leaveDead leaves a socket file that nobody listens on.
func leaveDead(t *testing.T, path string) {
	t.Helper()
	l := must.Get(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
	l.SetUnlinkOnClose(false)
	must.OK(t, l.Close())
}

func TestSocketOfAKilledProcessIsReplaced(t *testing.T) {
	path := filepath.Join(newOpenDir(t), "api.sock")
	p, said := newRole(t, os.Getuid(), "listen "+path)
	if said != wordListening {
		t.Fatal(said)
	}
	if err := listenErr(t, socket.Config{Path: path}); !errors.Is(err, socket.ErrInUse) {
		t.Errorf("beside a live process: got %v, want ErrInUse", err)
	}
	p.kill()
	before := names(t, filepath.Dir(path))
	roundTrip(t, newListener(t, socket.Config{Path: path}), path)
	if got := names(t, filepath.Dir(path)); got != before {
		t.Errorf("the directory held %q and holds %q", before, got)
	}
}

func TestRemoveStale(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "api.sock")
	for _, missing := range []string{path, filepath.Join(dir, "none", "api.sock")} {
		if err := socket.RemoveStale(missing); err != nil {
			t.Errorf("%s, which is not there: %v", missing, err)
		}
	}
	leaveDead(t, path)
	if err := socket.RemoveStale(path); err != nil || names(t, dir) != "" {
		t.Errorf("%v, and the directory holds %q", err, names(t, dir))
	}
	l := newListener(t, socket.Config{Path: path})
	if err := socket.RemoveStale(path); err != nil {
		t.Error(err)
	}
	conn, err := l.Accept() // it knocked
	must.OK(t, err)
	conn.Close()
	roundTrip(t, l, path)
}

// TestOneOfManyWins starts many listeners on one stale socket at once.
func TestOneOfManyWins(t *testing.T) {
	for range 20 {
		path := filepath.Join(t.TempDir(), "api.sock")
		leaveDead(t, path)
		var wg sync.WaitGroup
		won := make(chan *socket.Listener, 8)
		for range cap(won) {
			wg.Go(func() {
				l, err := socket.Listen(socket.Config{Path: path, UID: -1, GID: -1})
				switch {
				case err == nil:
					won <- l
				case !errors.Is(err, socket.ErrInUse):
					t.Errorf("got %v, want ErrInUse", err)
				}
			})
		}
		wg.Wait()
		close(won)
		if len(won) != 1 {
			t.Errorf("%d listeners won, want 1", len(won))
		}
		for l := range won {
			if c, err := net.Dial("unix", path); err != nil {
				t.Errorf("the winner can't be dialled: %v", err)
			} else {
				c.Close()
			}
			l.Close()
		}
		if got := names(t, filepath.Dir(path)); got != "" {
			t.Errorf("left behind: %q", got)
		}
	}
}

func TestWhatIsInTheWayStays(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"regular file":     func(p string) error { return os.WriteFile(p, []byte("kept"), 0o600) },
		"empty directory":  func(p string) error { return os.Mkdir(p, 0o700) },
		"pipe":             func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"dangling symlink": func(p string) error { return os.Symlink("nowhere", p) },
		"symlink to a file": func(p string) error {
			return errors.Join(os.WriteFile(p+".victim", nil, 0o640), os.Symlink(p+".victim", p))
		},
		"symlink to a stale socket": func(p string) error {
			leaveDead(t, p+".victim")
			return os.Symlink(p+".victim", p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "api.sock")
			must.OK(t, put(path))
			before, all := mustLstat(t, path), names(t, filepath.Dir(path))
			if err := listenErr(t, socket.Config{Path: path}); !errors.Is(err, socket.ErrInTheWay) {
				t.Errorf("got %v, want ErrInTheWay", err)
			}
			if err := socket.RemoveStale(path); err != nil {
				t.Errorf("remove it if it is dead: %v", err)
			}
			if after := mustLstat(t, path); !os.SameFile(before, after) || before.Mode() != after.Mode() {
				t.Errorf("it was %v and is %v", before, after)
			}
			if got := names(t, filepath.Dir(path)); got != all {
				t.Errorf("the directory held %q and holds %q", all, got)
			}
		})
	}
}

func mustLstat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	return must.Get(os.Lstat(path))(t)
}

func TestADatagramSocketIsNotTakenForDead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	c := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}))(t)
	defer c.Close()
	if err := listenErr(t, socket.Config{Path: path}); !errors.Is(err, socket.ErrInUse) {
		t.Errorf("got %v, want ErrInUse", err)
	}
}

func TestALockedDirectoryIsInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	leaveDead(t, path)
	f := must.Get(os.Open(filepath.Dir(path)))(t)
	defer f.Close()
	must.OK(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	if err := listenErr(t, socket.Config{Path: path}); !errors.Is(err, socket.ErrInUse) {
		t.Errorf("got %v, want ErrInUse", err)
	}
}

func TestCloseLeavesWhatReplacedIt(t *testing.T) {
	for name, replace := range map[string]func(path string) error{
		"file":    func(p string) error { return os.WriteFile(p, []byte("kept"), 0o600) },
		"symlink": func(p string) error { return os.Symlink("nowhere", p) },
		"socket": func(p string) error {
			leaveDead(t, p)
			return nil
		},
		"directory": func(p string) error { return os.Mkdir(p, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "api.sock")
			l := newListener(t, socket.Config{Path: path})
			must.OK(t, errors.Join(os.Remove(path), replace(path)))
			before := mustLstat(t, path)
			for range 2 {
				must.OK(t, l.Close())
			}
			if after := mustLstat(t, path); !os.SameFile(before, after) {
				t.Errorf("it was %v and is %v", before, after)
			}
		})
	}
}

// A directory that moved, or is gone, still is the one that Close works in.
func TestCloseFollowsItsDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	must.OK(t, os.Mkdir(dir, 0o700))
	l := newListener(t, socket.Config{Path: dir + "/api.sock"})
	must.OK(t, errors.Join(os.Rename(dir, dir+"2"), os.Mkdir(dir, 0o700),
		os.WriteFile(dir+"/api.sock", nil, 0o600)))
	must.OK(t, l.Close())
	if got := names(t, dir+"2"); got != "" {
		t.Errorf("the moved directory holds %q", got)
	}
	mustLstat(t, dir+"/api.sock")
	l = newListener(t, socket.Config{Path: dir + "2/api.sock"})
	must.OK(t, os.RemoveAll(dir+"2"))
	if err := l.Close(); err != nil {
		t.Errorf("close in a directory that is gone: %v", err)
	}
}
