package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"taskapi/internal/flock"
	"taskapi/internal/logfile"
)

// lockTimeout bounds the wait for a file's lock. A reader has it for a moment.
const lockTimeout = 500 * time.Millisecond

// lock opens the file at path and takes its lock, which one process has exclusively or any number share. If another
// file has been put in its place meanwhile, lock returns that one. Errors: ErrInUse, ErrNotFound, ErrFile.
func lock(path string, flag, how int) (*os.File, error) {
	for {
		file, err := os.OpenFile(path, flag|syscall.O_NONBLOCK, 0o600) // it may be a FIFO, which is not waited for
		if errors.Is(err, fs.ErrNotExist) && flag&os.O_CREATE == 0 {
			return nil, fmt.Errorf("%s: %w", path, ErrNotFound)
		}
		if err != nil {
			return nil, fileError(path, err)
		}
		if err := takeLock(file, how, lockTimeout); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
		}
		is, err := file.Stat()
		if err == nil {
			err = checkFile(is)
		}
		if err != nil {
			return nil, errors.Join(fileError(path, err), file.Close())
		}
		if named, err := os.Stat(path); err == nil && os.SameFile(is, named) {
			return file, nil
		}
		if err := file.Close(); err != nil {
			return nil, fileError(path, err)
		}
	}
}

// checkFile refuses a file that another user may have written.
func checkFile(is fs.FileInfo) error {
	if !is.Mode().IsRegular() {
		return errors.New("it is not a file")
	}
	owner, self := int(is.Sys().(*syscall.Stat_t).Uid), os.Geteuid()
	if self == 0 && owner != 0 || is.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("it has mode %04o and belongs to uid %d, so others can have written it: "+
			"if you trust it, run 'chown %d' and 'chmod 0600' on it",
			is.Mode().Perm(), owner, self)
	}
	return nil
}

func takeLock(file *os.File, how int, timeout time.Duration) error {
	err := flock.Lock(int(file.Fd()), how, timeout)
	switch {
	case errors.Is(err, flock.ErrLocked):
		return ErrInUse
	case err != nil:
		return fmt.Errorf("%w: lock it: %w", ErrFile, err)
	}
	return nil
}

// loadWhole reads an open file as load does. Errors: ErrDamaged if the file is not whole; those of load.
func loadWhole(file *os.File, path string) (*contents, error) {
	c, err := load(file, path)
	if err != nil || len(c.problems) == 0 {
		return c, err
	}
	const most = 3 // one damaged page makes many problems
	err = errors.Join(c.problems[:min(most, len(c.problems))]...)
	return nil, damagedError(path, strings.ReplaceAll(err.Error(), "\n", "; "))
}

func damagedError(path string, what any) error {
	return fmt.Errorf("%s: %w: %v", path, ErrDamaged, what)
}

// fileError returns an ErrFile with the file's name, the cause and what helps.
func fileError(path string, err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return fmt.Errorf("%s: %w: %w%s", path, ErrFile, err, logfile.Remedy(err))
}
