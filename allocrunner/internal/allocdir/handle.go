package allocdir

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"taskapi/internal/safedir"
)

// handle is an open directory. Everything below it is reached through its descriptor, name by name, never by path.
type handle struct{ *safedir.Dir }

// owner is a user and a group. A group of -1 stays as it is.
type owner struct{ uid, gid int }

// policy says when a directory's mode is set.
type policy bool

const (
	atCreation policy = false // the task may change it later
	enforce    policy = true
)

// spec describes a directory, and the directories below it.
type spec struct {
	name  string
	perm  uint32
	owner owner
	mode  policy
	below []spec
}

// openTop opens a directory that no task can replace.
func openTop(path string) (handle, error) {
	path = filepath.Clean(path)
	fd, st, err := safedir.OpenAt(unix.AT_FDCWD, path+"/.")
	if err != nil {
		return handle{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return handle{&safedir.Dir{FD: fd, Path: path, Stat: st}}, nil
}

// open opens the directory name in h. Errors: *fs.PathError; a link is ErrLink, another file ErrNotDirectory.
func (h handle) open(name string) (handle, error) {
	path := filepath.Join(h.Path, name)
	fd, st, err := safedir.OpenAt(h.FD, name)
	if err != nil {
		return handle{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return handle{&safedir.Dir{FD: fd, Path: path, Stat: st}}, nil
	case unix.S_IFLNK:
		err = ErrLink
	default:
		err = ErrNotDirectory
	}
	unix.Close(fd)
	return handle{}, &fs.PathError{Op: "open", Path: path, Err: err}
}

// ErrLink: there is a symbolic link in the place of taskapi's own directory. A task may have put it there.
var ErrLink = errors.New("is a symbolic link and is not followed; remove it")

// ErrNotDirectory: there is something else in the place of a directory.
var ErrNotDirectory = errors.New("is in the way and is no directory; remove it")

// make makes sure that directories exist, with those below them.
func (h handle) make(specs ...spec) error {
	for _, s := range specs {
		child, err := h.ensure(s)
		if err != nil {
			return explain("make directory", err)
		}
		err = child.make(s.below...)
		child.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// ensure makes the directory if it is missing, and sets its owner and mode through its descriptor. A new directory is
// closed to others until its owner is set.
func (h handle) ensure(s spec) (handle, error) {
	path := filepath.Join(h.Path, s.name)
	err := unix.Mkdirat(h.FD, s.name, 0o700)
	created := err == nil
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return handle{}, &fs.PathError{Op: "mkdir", Path: path, Err: err}
	}
	child, err := h.open(s.name)
	if err != nil {
		return handle{}, err
	}
	if err := child.setOwner(s, created || bool(s.mode)); err != nil {
		child.Close()
		return handle{}, &fs.PathError{Op: "set owner and mode of", Path: path, Err: err}
	}
	return child, nil
}

// setOwner changes only what differs, so a correct directory needs no right to chown.
func (h handle) setOwner(s spec, mode bool) error {
	if int(h.Stat.Uid) != s.owner.uid || int(h.Stat.Gid) != s.owner.gid && s.owner.gid >= 0 {
		if err := unix.Fchownat(h.FD, "", s.owner.uid, s.owner.gid, unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	if !mode || h.Stat.Mode&0o7777 == s.perm {
		return nil
	}
	return unix.Chmod(h.Proc(), s.perm)
}

// explain adds the remedy to errors that only the operator can solve.
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
