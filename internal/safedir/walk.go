// Package safedir opens directories, and files to write to, by paths that other users can't redirect, and reports
// whether other users could change the content of a directory. It follows a symbolic link on the way only if root or
// this process's user made it. An opened directory stays the same one, whatever happens to its path.
package safedir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Another user could tamper with the directory or the file.
var (
	ErrUnsafe     = errors.New("unsafe directory")
	ErrUnsafeFile = errors.New("unsafe file")
)

// maxLinks is how many symbolic links a path may go through, as in the kernel (path_resolution(7)).
const maxLinks = 40

// Dir is an opened directory.
type Dir struct {
	FD   int    // O_PATH: for look-ups, not for reading
	Path string // without symbolic links
	Stat unix.Stat_t
}

// Close must be called only once, since the number of a closed descriptor may be another file's.
func (d *Dir) Close() error { return unix.Close(d.FD) }

// Open opens a directory by its absolute path, one name at a time.
func Open(path string) (*Dir, error) {
	d, _, err := walk(path, nil)
	return d, err
}

// walk opens a directory as Open does, and calls visit for each directory on the way; last is set for the last one. If
// err says that a name does not exist, rest holds this name and the following ones, and d is the last directory that
// exists, open.
func walk(path string, visit func(d *Dir, last bool) error) (d *Dir, rest []string, err error) {
	w := walker{at: Dir{FD: -1}, rest: strings.Split(path, "/")}
	for err = w.toRoot(); err == nil; {
		if len(w.rest) > 0 && (w.rest[0] == "" || w.rest[0] == ".") { // the directory itself
			w.rest = w.rest[1:]
			continue
		}
		if visit != nil {
			if err = visit(&w.at, len(w.rest) == 0); err != nil {
				break
			}
		}
		if len(w.rest) == 0 {
			return &w.at, nil, nil
		}
		name := w.rest[0]
		if err = w.step(name, w.rest[1:]); err != nil {
			err = fmt.Errorf("%q: %w", name, err)
		}
	}
	err = fmt.Errorf("open directory %q: %w", path, err)
	if w.at.FD >= 0 && errors.Is(err, unix.ENOENT) {
		return &w.at, w.rest, err
	}
	w.enter(Dir{FD: -1})
	return nil, nil, err
}

// walker is the state of a walk: the directory that was reached, and the names that follow.
type walker struct {
	at    Dir // with FD -1 when it is not open
	rest  []string
	links int
}

func (w *walker) toRoot() error {
	fd, st, err := OpenAt(unix.AT_FDCWD, "/")
	if err != nil {
		return err
	}
	w.enter(Dir{fd, "/", st})
	return nil
}

func (w *walker) enter(d Dir) {
	if w.at.FD >= 0 {
		_ = unix.Close(w.at.FD)
	}
	w.at = d
}

// step enters the directory of a name, or puts the target of a symbolic link before the rest.
func (w *walker) step(name string, rest []string) error {
	fd, st, err := OpenAt(w.at.FD, name)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		w.enter(Dir{fd, filepath.Join(w.at.Path, name), st})
		w.rest = rest
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
	w.rest = append(strings.Split(target, "/"), rest...)
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

// OpenAt opens a name in a directory for look-ups, without following a symbolic link.
func OpenAt(dirfd int, name string) (fd int, st unix.Stat_t, err error) {
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
