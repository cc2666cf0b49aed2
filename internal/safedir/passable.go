package safedir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// MakePassable makes missing directories that other users may pass through, and not read, whatever the umask is. An
// existing directory keeps its mode.
func MakePassable(path string) error {
	if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := MakePassable(filepath.Dir(path)); err != nil {
		return err
	}
	if err := makePassableIn(filepath.Dir(path), filepath.Base(path)); err != nil {
		return &fs.PathError{Op: "mkdir", Path: path, Err: err}
	}
	return nil
}

// makePassableIn makes a directory in a parent. What another user puts in its place meanwhile, such as a link, keeps
// its mode: Trust refuses it.
func makePassableIn(parent, name string) error {
	dirfd, err := unix.Open(parent, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dirfd)
	if err := unix.Mkdirat(dirfd, name, ownMode); err != nil {
		if errors.Is(err, unix.EEXIST) { // another process was faster
			return nil
		}
		return err
	}
	fd, st, err := OpenAt(dirfd, name)
	if err != nil {
		return err
	}
	made := &Dir{fd, filepath.Join(parent, name), st}
	defer made.Close()
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() {
		return nil
	}
	return os.Chmod(made.Proc(), ownMode)
}
