package allocdir

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner/interfaces"
	"taskapi/internal/atomicfile"
)

// ErrOutside: a path leaves the task directory.
var ErrOutside = errors.New("leads out of the task directory")

// WriteFile puts a file at relPath, relative to the task directory, in one step: a reader sees the old content or the
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
	path := filepath.Join(at.path, names[last])
	if err := atomicfile.Replace(at.fd, path, data, atomicfile.Options{Mode: perm.Perm(), Owner: &atomicfile.Owner{UID: uid, GID: gid}}); err != nil {
		return explain(fmt.Sprintf("write %q", relPath), err)
	}
	return nil
}

// WriteHookFile puts a file of a task's hook below the task's directory, as WriteFile does.
func WriteHookFile(dir interfaces.TaskDir, user interfaces.User, f interfaces.File) error {
	to := cmp.Or(f.Owner, &interfaces.Owner{UID: user.UID, GID: user.GID})
	return WriteFile(dir, f.Path, f.Data, cmp.Or(f.Mode, 0o600), int(to.UID), int(to.GID))
}

// enter opens the directory name; a missing one is made only when make is set.
func (h *handle) enter(name string, make bool, own owner) (*handle, error) {
	next, err := h.open(name)
	if make && errors.Is(err, fs.ErrNotExist) {
		return h.ensure(spec{name, 0o755, own, atCreation})
	}
	return next, err
}

// RemoveUnfinished removes what a killed process was writing in an allocation directory, and in its tasks' secrets. No
// other process may be writing there.
func RemoveUnfinished(allocDir string) {
	root, err := os.OpenRoot(allocDir) // links of a task can't lead out of it
	if err != nil {
		return
	}
	defer root.Close()
	secrets, _ := filepath.Glob(filepath.Join(allocDir, "*", "secrets"))
	for _, path := range append(secrets, allocDir) {
		name, _ := filepath.Rel(allocDir, path)
		if dir, err := root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0); err == nil {
			atomicfile.RemoveLeftovers(dir, "")
			dir.Close()
		}
	}
}
