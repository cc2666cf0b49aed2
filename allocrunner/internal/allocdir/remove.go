package allocdir

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// removedPrefix begins the name that an allocation directory has while it is being removed.
const removedPrefix = ".removed-"

// Remove removes an allocation directory. A missing one is no error. The directory is renamed first: the state in it is
// the allocation's lock, and a process that finds no state may begin the allocation again while the rest is still being
// removed. Remove creates nothing, so it works on a full disk.
func Remove(dir string) error {
	parent, name := filepath.Split(filepath.Clean(dir))
	aside := filepath.Join(parent, removedPrefix+name+"-"+rand.Text())
	if err := os.Rename(dir, aside); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return os.RemoveAll(aside)
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
			errs = append(errs, os.RemoveAll(filepath.Join(parent, e.Name())))
		}
	}
	return errors.Join(errs...)
}
