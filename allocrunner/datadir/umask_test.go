package datadir_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"taskapi/allocrunner/datadir"
	"taskapi/internal/must"
)

// TestUmask of the process that makes a data directory first: the tasks' users can pass through all the same.
func TestUmask(t *testing.T) {
	for _, umask := range []int{0, 0o077, 0o777} {
		parent := t.TempDir()
		dir := datadir.Dir(filepath.Join(parent, "a", "b"))
		old := syscall.Umask(umask)
		err := dir.Make()
		syscall.Umask(old)
		must.OK(t, err)
		for _, made := range []string{filepath.Dir(string(dir)), string(dir), dir.Allocs()} {
			if info := must.Get(os.Stat(made))(t); info.Mode().Perm() != 0o711 {
				t.Errorf("umask %#o: %s has mode %v, want 0711", umask, made, info.Mode())
			}
		}
	}
}
