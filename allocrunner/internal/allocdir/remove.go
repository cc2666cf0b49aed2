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

// Remove removes an allocation directory; one that is missing is no error. It is renamed first: the state in it is the allocation's lock, and a process that finds that gone may
// begin the allocation again under the same name while the rest is still being removed. Nothing is made, which a full disk would refuse.
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

// RemoveLeftovers removes what calls of Remove that were cut short have left in the directory of the allocation directories.
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
