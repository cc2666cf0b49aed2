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

	"taskapi/internal/proc"
	"taskapi/internal/slice"
)

// removedPrefix begins the name that an allocation directory has while it is being removed.
const removedPrefix = ".removed-"

// Remove removes an allocation directory. A missing one is no error. The directory is renamed first: the state in it is
// the allocation's lock, and a process that finds no state may begin the allocation again while the rest is still being
// removed. Remove creates nothing, so it works on a full disk. Nothing is removed from a directory in which something
// is mounted.
func Remove(dir string) error {
	if err := nothingMounted(dir); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	parent, name := filepath.Split(filepath.Clean(dir))
	aside := filepath.Join(parent, removedPrefix+name+"-"+rand.Text())
	if err := os.Rename(dir, aside); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return removeAll(aside)
}

// removeAll removes a directory that no task can write to, with everything below it. A task may have nested directories
// deeper than os.RemoveAll can open them.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, unix.EMFILE) {
		return err
	}
	if err := flatten(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// flatten moves all directories below dir into dir, and opens one at a time. It follows no link: it opens only what is
// in dir, where nobody else can exchange it.
func flatten(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for names := slice.Map(entries, fs.DirEntry.Name); len(names) > 0; names = names[1:] {
		at := filepath.Join(dir, names[0])
		if info, err := os.Lstat(at); err != nil {
			return err
		} else if !info.IsDir() {
			continue
		}
		below, err := os.ReadDir(at)
		if err != nil {
			return err
		}
		for _, e := range below {
			if !e.IsDir() {
				continue
			}
			name := rand.Text()
			if err := os.Rename(filepath.Join(at, e.Name()), filepath.Join(dir, name)); err != nil {
				return err
			}
			names = append(names, name)
		}
	}
	return nil
}

// RemoveLeftovers removes directories that interrupted calls of Remove have left in the parent of the allocation
// directories.
func RemoveLeftovers(parent string) error {
	entries, err := os.ReadDir(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), removedPrefix) {
			dir := filepath.Join(parent, e.Name())
			err := nothingMounted(dir)
			if err == nil {
				err = removeAll(dir)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// nothingMounted returns an error that names a file system mounted below a directory: its files are somebody else's. If
// the list of mounts can't be read, nothing is known to be mounted.
func nothingMounted(dir string) error {
	path, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil //nolint:nilerr // there is nothing to remove
	}
	for _, mount := range proc.Mounts() {
		if strings.HasPrefix(mount.Dir, path+"/") {
			return fmt.Errorf("%s is mounted in it: unmount that first", mount.Dir)
		}
	}
	return nil
}
