package safedir

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ownMode lets every user pass through the directory, and list nothing.
const ownMode = 0o711

// Own opens the directory of this process's user at an absolute path, to which nobody else may write. If it is missing,
// Own makes it with mode 0711; its parent must exist. If another user has taken the name in a directory that everybody
// may write to, as /tmp is, Own uses another one beside it: path, a hyphen, and random characters. It finds that again
// later, since nobody else can make or remove a directory of this user. Errors: ErrUnsafe, which says what to change.
func Own(path string) (*Dir, error) {
	parent, err := Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	above := os.Geteuid()
	if owner := int(parent.Stat.Uid); outside(owner) {
		above = owner
	}
	if err := parent.CheckSafe(above); err != nil {
		return nil, err
	}
	name := filepath.Base(path)
	if !parent.OthersWrite() {
		return parent.own(name)
	}
	entries, err := os.ReadDir(parent.Proc())
	if err != nil {
		return nil, err
	}
	for _, e := range entries { // sorted
		if strings.HasPrefix(e.Name(), name+"-") && parent.isOurs(e.Name()) {
			if d, err := parent.own(e.Name()); err == nil {
				return d, nil
			}
		}
	}
	d, err := parent.own(name)
	if err != nil && !parent.isOurs(name) { // the user can correct a directory of their own
		d, err = parent.own(name + "-" + rand.Text()[:8])
	}
	return d, err
}

// own opens the directory of that name, or makes it.
func (d *Dir) own(name string) (_ *Dir, err error) {
	path := filepath.Join(d.Path, name)
	if err := unix.Mkdirat(d.FD, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("make directory %q: %w", path, err)
	}
	fd, st, err := OpenAt(d.FD, name)
	if err != nil {
		return nil, fmt.Errorf("open directory %q: %w", path, err)
	}
	own := &Dir{fd, path, st}
	defer func() {
		if err != nil {
			own.Close()
		}
	}()
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || own.OthersWrite() {
		return nil, fmt.Errorf("%w: %q is not a directory that uid %d owns and alone may write to; "+
			"remove it, or correct its owner and mode", ErrUnsafe, path, os.Geteuid())
	}
	if st.Mode&ownMode != ownMode {
		if err := os.Chmod(own.Proc(), os.FileMode(st.Mode|ownMode)&os.ModePerm); err != nil {
			return nil, fmt.Errorf("let other users pass %q: %w", path, err)
		}
	}
	return own, nil
}

// isOurs reports whether a file of that name belongs to this process's user.
func (d *Dir) isOurs(name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(d.FD, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && int(st.Uid) == os.Geteuid()
}

// CheckSafe refuses a directory with which anybody but root, this process's user and uid could tamper. Errors:
// ErrUnsafe.
func (d *Dir) CheckSafe(uid int) error {
	owner := int(d.Stat.Uid)
	if owner != 0 && owner != os.Geteuid() && owner != uid {
		return fmt.Errorf("%w: %q belongs to uid %d; chown it to uid %d or choose another", ErrUnsafe, d.Path, owner, uid)
	}
	if d.OthersWrite() && d.Stat.Mode&unix.S_ISVTX == 0 {
		return fmt.Errorf("%w: group or others may write to %q (mode %#o); chmod go-w it or choose another",
			ErrUnsafe, d.Path, d.Stat.Mode&0o7777)
	}
	return nil
}

// OthersWrite reports whether others than the owner may write to the directory.
func (d *Dir) OthersWrite() bool { return d.Stat.Mode&0o022 != 0 }

// Proc returns a short path to the directory, for calls that need a path.
func (d *Dir) Proc() string { return "/proc/self/fd/" + strconv.Itoa(d.FD) }
