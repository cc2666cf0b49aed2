package allocdir

import (
	"cmp"
	"crypto/rand"
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

// ErrOutside means that a path leaves the task directory.
var ErrOutside = errors.New("leads out of the task directory")

// WriteHookFile writes a file of a task's hook below the task's directory, or the shared one, atomically: a reader sees
// the whole old file or the whole new one, with its owner and mode. Missing directories on the way are made for the
// same owner, with mode 0755. No link is followed, and a link at the file's own place is replaced. Errors: ErrOutside,
// ErrLink, ErrNotDirectory, *fs.PathError.
func WriteHookFile(dir interfaces.TaskDir, user interfaces.User, f interfaces.File) error {
	by := cmp.Or(f.Owner, &interfaces.Owner{UID: user.UID, GID: user.GID})
	to := owner{int(by.UID), int(by.GID)}
	top := dir.Dir
	if f.Shared {
		top = dir.SharedDir
	}
	at, name, err := openParent(dir.AllocDir, top, f.Path, to)
	if err != nil {
		return fmt.Errorf("write %q: %w", f.Path, err)
	}
	defer at.Close()
	if err := atomicfile.Replace(at.FD, filepath.Join(at.Path, name), f.Data, atomicfile.Options{
		Mode: cmp.Or(f.Mode, 0o600).Perm(), Owner: &atomicfile.Owner{UID: to.uid, GID: to.gid}}); err != nil {
		return explain(fmt.Sprintf("write %q", f.Path), err)
	}
	return nil
}

// openParent opens the directory of a file below the directory top, and returns the file's name in it. It makes missing
// directories on the way.
func openParent(allocDir, top, relPath string, to owner) (at handle, name string, err error) {
	clean := filepath.Clean(relPath)
	if !filepath.IsLocal(relPath) || clean == "." {
		return handle{}, "", ErrOutside
	}
	if at, err = openTop(allocDir); err != nil {
		return handle{}, "", err
	}
	names := strings.Split(filepath.Join(filepath.Base(top), clean), string(filepath.Separator))
	last := len(names) - 1
	for i, name := range names[:last] {
		next, err := at.open(name)
		if i > 0 && errors.Is(err, fs.ErrNotExist) { // but the top directory itself is there
			next, err = makeIn(allocDir, at, spec{name, 0o755, to, atCreation, nil})
		}
		at.Close()
		if err != nil {
			return handle{}, "", err
		}
		at = next
	}
	return at, names[last], nil
}

// makeIn makes a directory in another one, where a task may exchange directories at any time: a directory that somebody
// else has put there keeps its owner. So the new directory is made, and gets its owner, in the allocation directory,
// where no task can make anything.
func makeIn(allocDir string, to handle, s spec) (handle, error) {
	h, err := openTop(allocDir)
	if err != nil {
		return handle{}, err
	}
	defer h.Close()
	name := s.name
	s.name = "." + rand.Text()
	made, err := h.ensure(s)
	if err == nil {
		if err = unix.Renameat(h.FD, s.name, to.FD, name); err != nil {
			made.Close()
			_ = unix.Unlinkat(h.FD, s.name, unix.AT_REMOVEDIR)
		}
	}
	path := filepath.Join(to.Path, name)
	switch s.name = name; {
	case err == nil:
		made.Path = path
		return made, nil
	case errors.Is(err, fs.ErrExist), errors.Is(err, unix.ENOTDIR): // also for ENOTEMPTY
		return to.open(name)
	case errors.Is(err, unix.EXDEV): // a driver has mounted it there
		return to.ensure(s)
	}
	if about, ok := errors.AsType[*fs.PathError](err); ok {
		err = about.Err
	}
	return handle{}, &fs.PathError{Op: "mkdir", Path: path, Err: err}
}

// ErrNoLink means that something else is in the place of a link.
var ErrNoLink = errors.New("is in the way of a link; remove it")

// Link makes a symbolic link at relPath, relative to the task directory, and replaces another one there. Missing
// directories on the way are made as WriteHookFile makes them. Errors: ErrOutside, ErrLink, ErrNotDirectory, ErrNoLink,
// *fs.PathError.
func Link(dir interfaces.TaskDir, relPath, target string, user interfaces.User) error {
	to := owner{int(user.UID), int(user.GID)}
	at, name, err := openParent(dir.AllocDir, dir.Dir, relPath, to)
	if err != nil {
		return fmt.Errorf("link %q: %w", relPath, err)
	}
	defer at.Close()
	failed := func(op string, err error) error {
		return explain("make link", &fs.PathError{Op: op, Path: filepath.Join(at.Path, name), Err: err})
	}
	had := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(at.FD, name, had)
	switch {
	case err == nil && string(had[:n]) == target:
		return nil
	case err == nil:
		if err := unix.Unlinkat(at.FD, name, 0); err != nil {
			return failed("remove", err)
		}
	case errors.Is(err, unix.EINVAL): // it is no link
		return failed("link", ErrNoLink)
	case !errors.Is(err, unix.ENOENT):
		return failed("read", err)
	}
	whole, err := openTop(dir.AllocDir) // no task can exchange the link there, before the link has its owner
	if err != nil {
		return failed("open", err)
	}
	defer whole.Close()
	temporary := "." + rand.Text()
	if err := unix.Symlinkat(target, whole.FD, temporary); err != nil {
		return failed("link", err)
	}
	err = unix.Fchownat(whole.FD, temporary, to.uid, to.gid, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil {
		err = unix.Renameat2(whole.FD, temporary, at.FD, name, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		_ = unix.Unlinkat(whole.FD, temporary, 0)
		return failed("place", err)
	}
	return nil
}

// RemoveUnfinished removes files that a killed process was writing in an allocation directory and in its tasks' secrets
// directories. No other process may be writing there. No link is followed.
func RemoveUnfinished(allocDir string) {
	removeUnfinished(allocDir)
	secrets, _ := filepath.Glob(filepath.Join(allocDir, "*", SecretsName))
	for _, path := range secrets {
		removeUnfinished(allocDir, filepath.Base(filepath.Dir(path)), SecretsName)
	}
}

func removeUnfinished(allocDir string, below ...string) {
	at, err := openTop(allocDir)
	for _, name := range below {
		if err != nil {
			return
		}
		var next handle
		next, err = at.open(name)
		at.Close()
		at = next
	}
	if err != nil {
		return
	}
	defer at.Close()
	if dir, err := os.Open(at.Proc()); err == nil {
		atomicfile.RemoveLeftovers(dir, "")
		dir.Close()
	}
}
