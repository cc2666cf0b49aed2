package start

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"taskapi/allocrunner"
	"taskapi/cmd/taskapi/internal/cli/base"
)

// tempPrefix is that of temporary data directories.
const tempPrefix = "taskapi-dev-"

// tempBase is where they are.
func tempBase(w base.Environment) string { return cmp.Or(w.Getenv("TMPDIR"), "/tmp") }

// tempLock is the file in one that is locked as long as its taskapi lives.
const tempLock = "lock"

// TiedLayout returns the data directory, a temporary one if none is given, and what removes that. It removes those that killed ones have left.
func TiedLayout(ctx context.Context, given string, w base.Environment) (base.Layout, func(), error) {
	if given != "" {
		l, err := base.NewLayout(given, w)
		if err == nil {
			err = l.MakeDir()
		}
		return l, func() {}, err
	}
	RemoveLeft(w, func(allocDir string) error { _, err := allocrunner.KillOrphans(ctx, allocDir); return err })
	dir, err := os.MkdirTemp(tempBase(w), tempPrefix)
	if err != nil {
		return base.Layout{}, nil, fmt.Errorf("a temporary directory: %w", err)
	}
	remove := func() { _ = os.RemoveAll(dir) } // what is left of it the next one removes
	lock, err := holdTemp(dir)
	if err == nil {
		err = os.Chmod(dir, 0o711) // for tasks of other users
	}
	if err != nil {
		remove()
		return base.Layout{}, nil, err
	}
	end := func() {
		remove()
		lock.Close()
	}
	l, err := base.NewLayout(dir, w)
	if err == nil {
		err = l.MakeDir()
	}
	if err != nil {
		end()
		return base.Layout{}, nil, err
	}
	return l, end, nil
}

// holdTemp locks a new temporary directory. The lock's file has its name when it is locked, and not before: another one would take it for left.
func holdTemp(dir string) (*os.File, error) {
	f, err := lockFile(dir, tempLock+".new")
	if err != nil {
		return nil, err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, tempLock)); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// lockTemp locks a temporary directory. Errors: unix.EWOULDBLOCK when somebody has it.
func lockTemp(dir string) (*os.File, error) { return lockFile(dir, tempLock) }

func lockFile(dir, name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// errStillRuns leaves an allocation of a killed one to the next that may kill.
var errStillRuns = errors.New("it still runs")

// IsOver returns errStillRuns for the directory of an allocation of which something runs.
func IsOver(allocDir string) error {
	running, err := allocrunner.OrphansRun(allocDir)
	if running {
		return errStillRuns
	}
	return err
}

// RemoveLeft removes what killed ones have left, and returns it: directories of this user, whose lock nobody has. end ends each of their
// allocations; a directory for which it can't stays.
func RemoveLeft(w base.Environment, end func(allocDir string) error) (removed []string) {
	left, _ := filepath.Glob(filepath.Join(tempBase(w), tempPrefix+"*")) // the pattern is good
	for _, dir := range left {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(dir, tempLock)); errors.Is(err, fs.ErrNotExist) && time.Since(info.ModTime()) < time.Minute {
			continue // its taskapi is about to lock it
		}
		lock, err := lockTemp(dir)
		if err != nil {
			continue
		}
		l, err := base.NewLayout(dir, w)
		entries, _ := os.ReadDir(l.Allocs()) // none, then
		for _, e := range entries {
			if err == nil {
				err = end(l.Alloc(e.Name()))
			}
		}
		if err == nil {
			err = os.RemoveAll(dir) // or the next one tries again
		}
		if err == nil {
			removed = append(removed, dir)
		}
		lock.Close()
	}
	return removed
}
