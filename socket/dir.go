package socket

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is how many symbolic links a path may go through, as in the kernel (path_resolution(7)).
const maxLinks = 40

// directory is an opened directory: whatever happens to its path, it stays the same one.
type directory struct {
	fd   int // O_PATH: to look things up in, not to read
	path string
	stat unix.Stat_t
}

// fileID tells files of one machine apart for as long as they exist.
type fileID struct{ dev, ino uint64 }

func idOf(st *unix.Stat_t) fileID { return fileID{dev: st.Dev, ino: st.Ino} }

// openDir opens a directory by its absolute path, one name at a time. A symbolic link on the way is followed only if
// root or this process's user owns it: who may only write to a directory on the way can't lead us elsewhere.
func openDir(path string) (*directory, error) {
	w := walk{rest: strings.Split(path, "/")}
	err := w.toRoot()
	for err == nil && len(w.rest) > 0 {
		name := w.rest[0]
		w.rest = w.rest[1:]
		if name == "" || name == "." {
			continue
		}
		if err = w.step(name); err != nil {
			err = fmt.Errorf("%q: %w", name, err)
		}
	}
	if err != nil {
		w.leave()
		return nil, fmt.Errorf("open directory %q: %w", path, err)
	}
	return &directory{fd: w.fd, path: path, stat: w.stat}, nil
}

// walk is the way to a directory: the one that was reached, and the names to go.
type walk struct {
	fd    int
	stat  unix.Stat_t
	rest  []string
	links int
	began bool // fd is open
}

func (w *walk) toRoot() error {
	fd, st, err := openAt(unix.AT_FDCWD, "/")
	if err != nil {
		return err
	}
	w.enter(fd, st)
	return nil
}

func (w *walk) enter(fd int, st unix.Stat_t) {
	w.leave()
	w.fd, w.stat, w.began = fd, st, true
}

func (w *walk) leave() {
	if w.began {
		_ = unix.Close(w.fd)
	}
}

// step enters the directory of a name, or puts what a symbolic link says before the rest.
func (w *walk) step(name string) error {
	fd, st, err := openAt(w.fd, name)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		w.enter(fd, st)
		return nil
	}
	defer unix.Close(fd)
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return unix.ENOTDIR
	}
	if w.links++; w.links > maxLinks {
		return unix.ELOOP
	}
	target, err := readTrustedLink(fd, st)
	if err != nil {
		return err
	}
	w.rest = append(strings.Split(target, "/"), w.rest...)
	if filepath.IsAbs(target) {
		return w.toRoot()
	}
	return nil
}

func readTrustedLink(fd int, st unix.Stat_t) (string, error) {
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return "", fmt.Errorf("%w: a symbolic link that uid %d made; use the path it stands for", ErrUnsafe, st.Uid)
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	return string(buf[:max(n, 0)]), err
}

// openAt opens a name in a directory without following it if it is a symbolic link.
func openAt(dirfd int, name string) (fd int, st unix.Stat_t, err error) {
	for {
		fd, err = unix.Openat(dirfd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) { // slow file systems interrupt
			break
		}
	}
	if err != nil {
		return -1, st, err
	}
	if err = unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// checkSafe refuses a directory that anybody could tamper with but root, this process's user and uid.
func (d *directory) checkSafe(uid int) error {
	owner := int(d.stat.Uid)
	if owner != 0 && owner != os.Geteuid() && owner != uid {
		return fmt.Errorf("%w: %q belongs to uid %d; chown it to uid %d or choose another", ErrUnsafe, d.path, owner, uid)
	}
	if d.othersWrite() && d.stat.Mode&unix.S_ISVTX == 0 {
		return fmt.Errorf("%w: group or others may write to %q (mode %#o); chmod go-w it or choose another",
			ErrUnsafe, d.path, d.stat.Mode&0o7777)
	}
	return nil
}

func (d *directory) othersWrite() bool { return d.stat.Mode&0o022 != 0 }

// lookup returns the identity and the type of a name, without following it.
func (d *directory) lookup(name string) (fileID, unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return idOf(&st), st, err
}

// removeIf unlinks a name if it still is that file; a name that is gone, or another file by now, is left alone.
func (d *directory) removeIf(name string, id fileID) error {
	got, _, err := d.lookup(name)
	switch {
	case errors.Is(err, unix.ENOENT), err == nil && got != id:
		return nil
	case err != nil:
		return fmt.Errorf("look at %q: %w", name, err)
	}
	if err := unix.Unlinkat(d.fd, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %q: %w", name, err)
	}
	return nil
}

// procPath is a short path to a name in the directory, for the calls that take nothing but a path.
func (d *directory) procPath(name string) string {
	return procFD(d.fd) + "/" + name
}

func procFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Close is not safe twice: the number of a closed descriptor may be another file's.
func (d *directory) Close() error { return unix.Close(d.fd) }

func closeOnError(c io.Closer, err *error) {
	if *err != nil {
		_ = c.Close()
	}
}
