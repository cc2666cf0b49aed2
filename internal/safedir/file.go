package safedir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// OpenFile opens a file to write to it, or makes it. open gets another path of the same file. In a directory that
// another user may write to, such as the one that the tasks of a Nomad job share, OpenFile takes no link and no file of
// another user: a link could lead to any file of this user. Errors: ErrUnsafe, ErrUnsafeFile, open's; without the path.
func OpenFile(path string, open func(path string) (*os.File, error)) (*os.File, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	dir, err := Open(filepath.Dir(path))
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return nil, errno
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	name := filepath.Base(path)
	if dir.CheckSafe(os.Geteuid()) == nil && !dir.OthersWrite() {
		return open(filepath.Join(dir.Proc(), name))
	}
	made, err := unix.Openat(dir.FD, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err == nil {
		_ = unix.Close(made)
	} else if !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	fd, st, err := OpenAt(dir.FD, name)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	owner, link := int(st.Uid), st.Mode&unix.S_IFMT == unix.S_IFLNK
	if link || st.Nlink > 1 || owner != 0 && owner != os.Geteuid() {
		return nil, fmt.Errorf("%w: it is a link or belongs to uid %d, and others may write to %q, so it may be planted; "+
			"remove it, or choose a directory that you alone can write to", ErrUnsafeFile, owner, dir.Path)
	}
	return open("/proc/self/fd/" + strconv.Itoa(fd)) // the very file that was looked at
}
