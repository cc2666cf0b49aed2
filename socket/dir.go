package socket

import (
	"errors"
	"fmt"
	"io"
	"strconv"

	"golang.org/x/sys/unix"

	"taskapi/internal/safedir"
)

// directory is an open directory, which stays the same one whatever happens to its path.
type directory struct{ *safedir.Dir }

// fileID identifies a file of this machine. It differs from that of a file which is gone and whose inode number is in
// use again.
type fileID struct {
	dev, ino uint64
	made     unix.Timespec
}

func idOf(st *unix.Stat_t) fileID { return fileID{st.Dev, st.Ino, st.Mtim} }

// openDir opens a directory by its absolute path, one name at a time. A symbolic link on the way is followed only if
// root or this process's user owns it, so another user who may write to a directory on the way can't redirect it.
func openDir(path string) (directory, error) {
	d, err := safedir.Open(path)
	return directory{d}, err
}

// lookup returns the identity and the type of a name, without following it.
func (d directory) lookup(name string) (fileID, unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(d.FD, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return idOf(&st), st, err
}

// removeIf unlinks a name if it still is that file. A missing name is no error, and another file of that name stays.
func (d directory) removeIf(name string, id fileID) error {
	got, _, err := d.lookup(name)
	switch {
	case errors.Is(err, unix.ENOENT), err == nil && got != id:
		return nil
	case err != nil:
		return fmt.Errorf("look at %q: %w", name, err)
	}
	if err := unix.Unlinkat(d.FD, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %q: %w", name, err)
	}
	return nil
}

// procPath returns a short path to a name in the directory, for calls that need a path.
func (d directory) procPath(name string) string {
	return d.Proc() + "/" + name
}

func procFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func closeOnError(c io.Closer, err *error) {
	if *err != nil {
		_ = c.Close()
	}
}
