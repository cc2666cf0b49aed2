package allocdir

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
)

// ErrOutside: a path leaves the task directory.
var ErrOutside = errors.New("leads out of the task directory")

// WriteFile puts a file at relPath, relative to the task directory, in one step: whoever opens it sees the old content or the
// new one, whole, with its owner and mode. Directories that are missing on the way are made for the same owner, mode 0755; no
// link is followed, and one at the file's own place is replaced. Errors: ErrOutside, ErrLink, ErrNotDirectory, *fs.PathError.
func WriteFile(dir interfaces.TaskDir, relPath string, data []byte, perm fs.FileMode, uid, gid int) error {
	clean := filepath.Clean(relPath)
	if !filepath.IsLocal(relPath) || clean == "." {
		return fmt.Errorf("write %q: %w", relPath, ErrOutside)
	}
	at, err := openTop(dir.AllocDir)
	if err != nil {
		return fmt.Errorf("write %q: %w", relPath, err)
	}
	names := strings.Split(filepath.Join(filepath.Base(dir.Dir), clean), string(filepath.Separator))
	last := len(names) - 1
	for i, name := range names[:last] {
		next, err := at.enter(name, i > 0, owner{uid, gid})
		at.close()
		if err != nil {
			return fmt.Errorf("write %q: %w", relPath, err)
		}
		at = next
	}
	defer at.close()
	if err := at.replace(names[last], data, uint32(perm.Perm()), owner{uid, gid}); err != nil {
		return explain(fmt.Sprintf("write %q", relPath), err)
	}
	return nil
}

// enter opens the directory name; a missing one is made only when make is set.
func (h *handle) enter(name string, make bool, own owner) (*handle, error) {
	next, err := h.open(name)
	if make && errors.Is(err, fs.ErrNotExist) {
		return h.ensure(spec{name, 0o755, own, atCreation})
	}
	return next, err
}

// replace writes beside name and renames over it. The temporary name can't be guessed, so nobody can wait for it; it is created
// with O_EXCL, so nothing that stands there is opened.
func (h *handle) replace(name string, data []byte, perm uint32, own owner) (err error) {
	path := filepath.Join(h.path, name)
	tmp := "." + name + "." + rand.Text()
	if len(tmp) > unix.NAME_MAX {
		tmp = "." + rand.Text()
	}
	fd, err := unix.Openat(h.fd, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &fs.PathError{Op: "create", Path: path, Err: err}
	}
	defer func() {
		if err != nil {
			unix.Unlinkat(h.fd, tmp, 0) // what is left of it is of no use to anybody
		}
	}()
	if err := fill(os.NewFile(uintptr(fd), path), data, perm, own); err != nil {
		return err
	}
	if err := unix.Renameat(h.fd, tmp, h.fd, name); err != nil {
		return &fs.PathError{Op: "replace", Path: path, Err: err}
	}
	return nil
}

// fill writes f and closes it. The owner comes before the mode, which a chown may clear bits of.
func fill(f *os.File, data []byte, perm uint32, own owner) error {
	_, err := f.Write(data)
	if err == nil && (own.uid != os.Geteuid() || own.gid != os.Getegid()) {
		err = f.Chown(own.uid, own.gid)
	}
	if err == nil {
		err = f.Chmod(fs.FileMode(perm))
	}
	return errors.Join(err, f.Close())
}
