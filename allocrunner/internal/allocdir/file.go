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

// WriteFile writes a file at relPath, relative to the task directory, atomically: a reader sees the whole old file or
// the whole new one, with its owner and mode. Missing directories on the way are made for the same owner, with mode
// 0755. No link is followed, and a link at the file's own place is replaced. Errors: ErrOutside, ErrLink,
// ErrNotDirectory, *fs.PathError.
func WriteFile(dir interfaces.TaskDir, relPath string, data []byte, perm fs.FileMode, uid, gid int) error {
	return writeBelow(dir.AllocDir, dir.Dir, relPath, data, perm, uid, gid)
}

// writeBelow does so for a directory right below the allocation directory.
func writeBelow(allocDir, top, relPath string, data []byte, perm fs.FileMode, uid, gid int) error {
	clean := filepath.Clean(relPath)
	if !filepath.IsLocal(relPath) || clean == "." {
		return fmt.Errorf("write %q: %w", relPath, ErrOutside)
	}
	at, err := openTop(allocDir)
	if err != nil {
		return fmt.Errorf("write %q: %w", relPath, err)
	}
	names := strings.Split(filepath.Join(filepath.Base(top), clean), string(filepath.Separator))
	last := len(names) - 1
	for i, name := range names[:last] {
		next, err := at.open(name)
		if i > 0 && errors.Is(err, fs.ErrNotExist) { // but the top directory itself is there
			next, err = at.ensure(spec{name, 0o755, owner{uid, gid}, atCreation, nil})
		}
		at.Close()
		if err != nil {
			return fmt.Errorf("write %q: %w", relPath, err)
		}
		at = next
	}
	defer at.Close()
	path := filepath.Join(at.Path, names[last])
	if err := atomicfile.Replace(at.FD, path, data,
		atomicfile.Options{Mode: perm.Perm(), Owner: &atomicfile.Owner{UID: uid, GID: gid}}); err != nil {
		return explain(fmt.Sprintf("write %q", relPath), err)
	}
	return nil
}

// WriteHookFile puts a file of a task's hook below the task's directory, or the shared one, as WriteFile does.
func WriteHookFile(dir interfaces.TaskDir, user interfaces.User, f interfaces.File) error {
	to := cmp.Or(f.Owner, &interfaces.Owner{UID: user.UID, GID: user.GID})
	top := dir.Dir
	if f.Shared {
		top = dir.SharedDir
	}
	return writeBelow(dir.AllocDir, top, f.Path, f.Data, cmp.Or(f.Mode, 0o600), int(to.UID), int(to.GID))
}

// RemoveUnfinished removes files that a killed process was writing in an allocation directory and in its tasks' secrets
// directories. No other process may be writing there.
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
