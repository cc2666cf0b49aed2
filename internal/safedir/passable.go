package safedir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// passable is the mode of a directory that other users may pass through, and not read.
const passable = 0o711

// MakePassable makes missing directories that other users may pass through, whatever the umask is. An existing
// directory keeps its mode.
func MakePassable(path string) error {
	if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := MakePassable(filepath.Dir(path)); err != nil {
		return err
	}
	if err := os.Mkdir(path, passable); errors.Is(err, fs.ErrExist) { // another process was faster
		return nil
	} else if err != nil {
		return err
	}
	return os.Chmod(path, passable)
}
