package allocdir

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// handle is an open directory. Everything below it is reached through its descriptor, name by name, never by path.
type handle struct {
	fd   int
	path string // for errors
}

type owner struct{ uid, gid int } // a gid of -1 stays as it is

// policy says when a directory's mode is set.
type policy bool

const (
	atCreation policy = false // the task may change it later
	enforce    policy = true
)

// spec describes a directory.
type spec struct {
	name  string
	perm  uint32
	owner owner
	mode  policy
}

// openFlags never follow a link and never open anything but a directory.
const openFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// openTop opens a directory that no task can have replaced.
func openTop(path string) (*handle, error) {
	path = filepath.Clean(path)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return &handle{fd, path}, nil
}

func (h *handle) close() { unix.Close(h.fd) }

// open opens the directory name in h. Errors: *fs.PathError; a link is ErrLink.
func (h *handle) open(name string) (*handle, error) {
	path := filepath.Join(h.path, name)
	fd, err := unix.Openat(h.fd, name, openFlags, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		err = h.inTheWay(name)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return &handle{fd, path}, nil
}

// inTheWay returns the error for a file or a link in the place of a directory.
func (h *handle) inTheWay(name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(h.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return ErrLink
	}
	return ErrNotDirectory
}

// ErrLink: there is a symbolic link in the place of taskapi's own directory. A task may have put it there.
var ErrLink = errors.New("is a symbolic link and is not followed; remove it")

// ErrNotDirectory: there is something else in the place of a directory.
var ErrNotDirectory = errors.New("is in the way and is no directory; remove it")

// within makes sure that the directory exists, and calls f with it.
func (h *handle) within(s spec, f func(*handle) error) error {
	child, err := h.ensure(s)
	if err != nil {
		return explain("make directory", err)
	}
	defer child.close()
	return f(child)
}

// all makes sure that every directory exists.
func (h *handle) all(specs ...spec) error {
	for _, s := range specs {
		if err := h.within(s, func(*handle) error { return nil }); err != nil {
			return err
		}
	}
	return nil
}

// ensure makes the directory if it is missing, and sets its owner and mode through its descriptor. A new directory is
// closed to others until its owner is set.
func (h *handle) ensure(s spec) (_ *handle, err error) {
	path := filepath.Join(h.path, s.name)
	err = unix.Mkdirat(h.fd, s.name, 0o700)
	created := err == nil
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &fs.PathError{Op: "mkdir", Path: path, Err: err}
	}
	child, err := h.open(s.name)
	if err != nil {
		return nil, err
	}
	if err := child.setOwner(s, created || bool(s.mode)); err != nil {
		child.close()
		return nil, &fs.PathError{Op: "set owner and mode of", Path: path, Err: err}
	}
	return child, nil
}

// setOwner changes only what differs, so that a directory that is right needs no right to chown.
func (h *handle) setOwner(s spec, mode bool) error {
	var st unix.Stat_t
	if err := unix.Fstat(h.fd, &st); err != nil {
		return err
	}
	if int(st.Uid) != s.owner.uid || int(st.Gid) != s.owner.gid && s.owner.gid >= 0 {
		if err := unix.Fchown(h.fd, s.owner.uid, s.owner.gid); err != nil {
			return err
		}
	}
	if !mode || st.Mode&0o7777 == s.perm {
		return nil
	}
	return unix.Fchmod(h.fd, s.perm)
}

// explain adds what the operator can do, to errors that only the operator can solve.
func explain(what string, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: %w; choose a data directory that you can write to, or run as root", what, err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%s: %w; make room on that file system, or choose another data directory", what, err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%s: %w; choose a data directory on a file system that can be written", what, err)
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%s: %w; a file is in the way: remove it, or choose another data directory", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
