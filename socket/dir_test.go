package socket_test

import (
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"taskapi/internal/must"
	"taskapi/socket"
)

func TestUnsafeDirectoryIsRefused(t *testing.T) {
	needRoot(t)
	for name, tc := range map[string]struct {
		mode os.FileMode
		uid  int
		want error
	}{
		"ours":                   {0o755, 0, nil},
		"the owner's":            {0o700, taskUID, nil},
		"sticky":                 {0o777 | os.ModeSticky, 0, nil},
		"somebody else's":        {0o700, taskUID + 1, socket.ErrUnsafe},
		"somebody else's sticky": {0o777 | os.ModeSticky, taskUID + 1, socket.ErrUnsafe},
		"group may write":        {0o770, 0, socket.ErrUnsafe},
		"all may write":          {0o702, 0, socket.ErrUnsafe},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must.OK(t, errors.Join(os.Chown(dir, tc.uid, tc.uid), os.Chmod(dir, tc.mode)))
			l, err := socket.Listen(socket.Config{Path: dir + "/api.sock", UID: taskUID, GID: taskUID})
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
			if err == nil {
				l.Close()
			} else if !strings.Contains(err.Error(), dir) {
				t.Errorf("%v does not name %q", err, dir)
			}
		})
	}
}

func TestAForeignDeadSocketInAStickyDirectoryStays(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	leaveDead(t, dir+"/api.sock")
	must.OK(t, errors.Join(os.Chmod(dir, 0o777|os.ModeSticky), os.Lchown(dir+"/api.sock", taskUID, taskUID)))
	if err := listenErr(t, socket.Config{Path: dir + "/api.sock"}); !errors.Is(err, socket.ErrInTheWay) {
		t.Errorf("got %v, want ErrInTheWay", err)
	}
	mustLstat(t, dir+"/api.sock")
}

func TestSymbolicLinksOnTheWay(t *testing.T) {
	base := t.TempDir()
	must.OK(t, errors.Join(
		os.MkdirAll(base+"/real/dir", 0o755),
		os.Symlink(base+"/real", base+"/absolute"),
		os.Symlink("real/../absolute/./dir", base+"/relative"),
		os.Symlink("loop", base+"/loop"),
	))
	for _, dir := range []string{"absolute/dir", "relative"} {
		l := newListener(t, socket.Config{Path: filepath.Join(base, dir, "api.sock")})
		roundTrip(t, l, filepath.Join(base, dir, "api.sock"))
		l.Close()
	}
	if err := listenErr(t, socket.Config{Path: base + "/loop/api.sock"}); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a loop: got %v, want ELOOP", err)
	}
	t.Run("of another user", func(t *testing.T) {
		needRoot(t)
		must.OK(t, os.Lchown(base+"/absolute", taskUID, taskUID))
		err := listenErr(t, socket.Config{Path: base + "/absolute/dir/api.sock", UID: taskUID, GID: taskUID})
		if !errors.Is(err, socket.ErrUnsafe) {
			t.Errorf("got %v, want ErrUnsafe", err)
		}
		if got := names(t, base+"/real/dir"); got != "" {
			t.Errorf("made through the link: %q", got)
		}
	})
}

// TestTheOwnerOfTheDirectoryGainsNothing lets the owner of the directory exchange whatever is in it while sockets are
// made there for it: no file outside is ever removed, given away or opened up, and none is made in a directory of its
// own.
func TestTheOwnerOfTheDirectoryGainsNothing(t *testing.T) {
	needRoot(t)
	m := newMeddler(t)
	watch := must.Get(unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC))(t)
	defer unix.Close(watch)
	for _, dir := range []string{m.own, m.bait} {
		must.Get(unix.InotifyAddWatch(watch, dir, unix.IN_CREATE|unix.IN_MOVE|unix.IN_DELETE))(t)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				m.meddle()
			}
		}
	}()
	made := 0
	for range 300 {
		l, err := socket.Listen(socket.Config{Path: m.dir + "/api.sock", Mode: 0o666, UID: taskUID, GID: taskUID})
		if err == nil {
			made++
			l.Close()
		}
	}
	close(stop)
	<-stopped
	t.Logf("%d of 300 sockets were made", made)
	info := mustLstat(t, m.victim)
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 0 || info.Mode() != 0o640 || st.Nlink != 1 {
		t.Errorf("the victim is now uid %d, mode %v, %d links", st.Uid, info.Mode(), st.Nlink)
	}
	if got := mustLstat(t, m.bait).Sys().(*syscall.Stat_t).Uid; got != 0 {
		t.Errorf("the bait belongs to uid %d", got)
	}
	event := make([]byte, unix.SizeofInotifyEvent+unix.NAME_MAX+1)
	if n, err := unix.Read(watch, event); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("something was made or removed in a directory that is not the socket's: %q, %v", event[:max(n, 0)], err)
	}
}

// meddler does what the owner of dir may do.
type meddler struct {
	dir    string // where the socket is made
	own    string // another directory of the same owner
	bait   string // a directory of root's
	victim string // a file of root's
}

func newMeddler(t *testing.T) *meddler {
	t.Helper()
	base := t.TempDir()
	m := &meddler{dir: base + "/secrets", own: base + "/own", bait: base + "/bait", victim: base + "/victim"}
	err := os.WriteFile(m.victim, []byte("kept"), 0o640)
	for _, dir := range []string{m.dir, m.own, m.bait} {
		// The file keeps rmdir(2) from ending the race.
		err = errors.Join(err, os.Mkdir(dir, 0o700), os.WriteFile(dir+"/file", nil, 0o600))
	}
	err = errors.Join(err, os.Chown(m.dir, taskUID, taskUID), os.Chown(m.own, taskUID, taskUID))
	must.OK(t, err)
	return m
}

// meddle does one thing at random.
func (m *meddler) meddle() {
	path := m.dir + "/api.sock"
	switch rand.IntN(6) {
	case 0:
		_ = os.Remove(path)
	case 1:
		_ = os.Symlink(m.victim, path)
	case 2:
		_ = os.WriteFile(path, nil, 0o600)
	case 3:
		if l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}); err == nil {
			l.SetUnlinkOnClose(rand.IntN(2) == 0)
			l.Close()
		}
	case 4:
		m.exchangeStaging(m.own)
	default:
		swap := m.dir + "/swap"
		_ = os.Symlink(m.bait, swap)
		m.exchangeStaging(swap)
		_ = os.RemoveAll(swap)
	}
}

// exchangeStaging puts a file where a staging directory was just made, for a moment.
func (m *meddler) exchangeStaging(with string) {
	entries, _ := os.ReadDir(m.dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".socket-") {
			staging := m.dir + "/" + e.Name()
			if unix.Renameat2(unix.AT_FDCWD, with, unix.AT_FDCWD, staging, unix.RENAME_EXCHANGE) != nil {
				continue
			}
			runtime.Gosched()
			_ = unix.Renameat2(unix.AT_FDCWD, with, unix.AT_FDCWD, staging, unix.RENAME_EXCHANGE)
			_ = os.Remove(staging)
		}
	}
}
