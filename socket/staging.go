package socket

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/internal/flock"
	"taskapi/internal/safedir"
)

// stagingDir is a directory beside the socket's place that only this process's user can enter. The socket is made in
// it, gets its mode and owner there, and is then renamed to its place. This rename(2) neither follows nor replaces
// anything.
type stagingDir struct {
	parent directory
	name   string    // of the staging directory in parent
	dir    directory // the staging directory
	child  string    // of the socket in the staging directory
	final  string    // of the socket in parent
}

// staleName is the name of a stale socket in the staging directory.
const staleName = ".dead"

func newStagingDir(parent directory, final string) (_ *stagingDir, err error) {
	name := ".socket-" + rand.Text()
	if err := unix.Mkdirat(parent.FD, name, 0o700); err != nil {
		return nil, fmt.Errorf("make a directory in %q: %w", parent.Path, err)
	}
	fd, st, err := safedir.OpenAt(parent.FD, name)
	if err != nil {
		return nil, fmt.Errorf("open a directory just made in %q: %w", parent.Path, err)
	}
	own := directory{&safedir.Dir{FD: fd, Path: name, Stat: st}}
	n := &stagingDir{parent: parent, name: name, final: final, child: final, dir: own}
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	// A user who may write to the parent could have put another directory there.
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return nil, fmt.Errorf("%w: a directory just made in %q was replaced by another user", ErrUnsafe, parent.Path)
	}
	// The name that bind is given shows in /proc/net/unix, so the real one is used if it fits.
	if len(n.dir.procPath(final)) > maxSunPath || final == staleName {
		n.child = "s"
	}
	return n, nil
}

// setOwner gives the socket its exact mode and owner and returns its identity.
func (d *stagingDir) setOwner(cfg Config) (fileID, error) {
	id, st, err := d.dir.lookup(d.child)
	if err != nil {
		return id, fmt.Errorf("look at the new socket: %w", err)
	}
	if int(st.Uid) != cfg.UID || int(st.Gid) != cfg.GID {
		if err := unix.Fchownat(d.dir.FD, d.child, cfg.UID, cfg.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return id, fmt.Errorf("give the socket to %d:%d (-1 keeps it): %w", cfg.UID, cfg.GID, err)
		}
	}
	if err := unix.Fchmodat(d.dir.FD, d.child, uint32(cfg.Mode), 0); err != nil {
		return id, fmt.Errorf("set mode %#o of the socket: %w", cfg.Mode, err)
	}
	return id, nil
}

// publish renames the socket to its place. A stale socket there is removed first.
func (d *stagingDir) publish(id fileID) error {
	err := unix.Renameat2(d.dir.FD, d.child, d.parent.FD, d.final, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) {
		err = d.replaceStale()
	}
	if err != nil {
		return err
	}
	if got, _, err := d.parent.lookup(d.final); err != nil || got != id {
		return fmt.Errorf("%w: the new socket was replaced by a user who may write to %q", ErrUnsafe, d.parent.Path)
	}
	return nil
}

// replaceStale removes a stale socket and publishes the new one. The lock on the directory keeps two processes that
// found the same stale socket from removing each other's new one. A rename that replaces nothing needs no lock.
func (d *stagingDir) replaceStale() error {
	unlock, err := d.parent.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := d.removeStale(); err != nil {
		return err
	}
	err = unix.Renameat2(d.dir.FD, d.child, d.parent.FD, d.final, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%w: another process was quicker", ErrInUse)
	}
	return err
}

// removeStale moves a stale socket into the staging directory and removes it there; any other file stays.
func (d *stagingDir) removeStale() error {
	fd, st, err := safedir.OpenAt(d.parent.FD, d.final)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at what is in the way: %w", err)
	}
	defer unix.Close(fd)
	if err := d.checkStale(fd, st); err != nil {
		return err
	}
	if err := unix.Renameat(d.parent.FD, d.final, d.dir.FD, staleName); err != nil {
		return fmt.Errorf("move a stale socket away: %w", err)
	}
	if got, _, err := d.dir.lookup(staleName); err != nil || got != idOf(&st) {
		// Another file was moved: put it back.
		_ = unix.Renameat2(d.dir.FD, staleName, d.parent.FD, d.final, unix.RENAME_NOREPLACE)
		return fmt.Errorf("%w: it was replaced meanwhile", ErrInTheWay)
	}
	return unix.Unlinkat(d.dir.FD, staleName, 0)
}

func (d *stagingDir) checkStale(fd int, st unix.Stat_t) error {
	if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFSOCK {
		return fmt.Errorf("%w: a %s is there; move it or choose another path", ErrInTheWay, kindName(kind))
	}
	// If only trusted users can write there, any stale socket was left by this user.
	if owner := int(st.Uid); d.parent.OthersWrite() && owner != os.Geteuid() {
		return fmt.Errorf("%w: a socket of uid %d is there; choose another path", ErrInTheWay, owner)
	}
	return probe(fd)
}

// RemoveStale removes the socket at path if nobody listens on it, as after its process was killed. Any other file
// stays, and a missing one is no error.
func RemoveStale(path string) error {
	d, err := openDir(filepath.Dir(path))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove a stale socket: %w", err)
	}
	defer d.Close()
	name := filepath.Base(path)
	fd, st, err := safedir.OpenAt(d.FD, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove a stale socket: look at %q: %w", path, err)
	}
	defer unix.Close(fd)
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || probe(fd) != nil {
		return nil
	}
	return d.removeIf(name, idOf(&st))
}

// probe connects to the socket file that fd refers to. A refused connection means that nobody listens and nobody will,
// because a Listener listens before its socket is in its place.
func probe(fd int) error {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a socket to probe with: %w", err)
	}
	defer unix.Close(s)
	err = unix.Connect(s, &unix.SockaddrUnix{Name: procFD(fd)})
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return nil
	case err == nil, errors.Is(err, unix.EAGAIN): // EAGAIN: its backlog is full
		return fmt.Errorf("%w: another process listens there; stop it or choose another path", ErrInUse)
	}
	return fmt.Errorf("%w: a socket is there, and whether a process listens is not known: %w", ErrInUse, err)
}

// lockWait is far longer than the few system calls for which the lock is held.
const lockWait = time.Second

// lock takes flock(2) on the directory itself, which leaves no file behind and ends with the process. An untrusted
// owner of the directory can hold the lock, too, but that prevents only the owner's own socket.
func (d directory) lock() (unlock func(), err error) {
	fd, err := unix.Openat(d.FD, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %q to lock it: %w", d.Path, err)
	}
	if err = flock.Lock(fd, unix.LOCK_EX, lockWait); err == nil {
		return func() { _ = unix.Close(fd) }, nil
	}
	_ = unix.Close(fd)
	if errors.Is(err, flock.ErrLocked) {
		return nil, fmt.Errorf("%w: another process holds the lock on %q", ErrInUse, d.Path)
	}
	return nil, fmt.Errorf("lock %q: %w", d.Path, err)
}

// close removes the staging directory and its content. Errors don't matter: an untrusted owner of the parent may have
// moved it.
func (d *stagingDir) close() {
	_ = unix.Unlinkat(d.dir.FD, d.child, 0)
	_ = d.dir.Close()
	_ = unix.Unlinkat(d.parent.FD, d.name, unix.AT_REMOVEDIR)
}

func kindName(mode uint32) string {
	switch mode {
	case unix.S_IFREG:
		return "regular file"
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFLNK:
		return "symbolic link"
	}
	return "device or pipe"
}
