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

// TiedLayout returns the given data directory, or a new temporary one, and a function that removes the temporary one.
// It also removes the directories that killed processes have left.
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
	lock, err := holdTemp(dir)
	end := func() {
		_ = os.RemoveAll(dir) // the next dev or test removes what is left
		lock.Close()
	}
	if err == nil {
		err = os.Chmod(dir, 0o711) // for tasks of other users
	}
	var l base.Layout
	if err == nil {
		l, err = base.NewLayout(dir, w)
	}
	if err == nil {
		err = l.MakeDir()
	}
	if err != nil {
		end()
		return base.Layout{}, nil, err
	}
	return l, end, nil
}

// holdTemp locks a new temporary directory. The lock file gets its name only when it is locked: otherwise another
// process would take the directory for an abandoned one.
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

// lockFile locks a file of a directory, and makes it if there is none. Errors: unix.EWOULDBLOCK when another process
// has the lock.
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

// errStillRuns keeps a directory in which a task still runs.
var errStillRuns = errors.New("it still runs")

// IsOver returns an error if a process of the allocation in a directory still runs.
func IsOver(allocDir string) error {
	running, err := allocrunner.OrphansRun(allocDir)
	if running {
		return errStillRuns
	}
	return err
}

// RemoveLeft removes and returns the temporary directories of this user that killed processes have left, which nobody
// locks. It first calls end for each allocation in them; a directory stays if that fails.
func RemoveLeft(w base.Environment, end func(allocDir string) error) (removed []string) {
	left, _ := filepath.Glob(filepath.Join(tempBase(w), tempPrefix+"*")) // the pattern is good
	for _, dir := range left {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(dir, tempLock)); errors.Is(err, fs.ErrNotExist) &&
			time.Since(info.ModTime()) < time.Minute {
			continue // its taskapi is about to lock it
		}
		lock, err := lockFile(dir, tempLock)
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
